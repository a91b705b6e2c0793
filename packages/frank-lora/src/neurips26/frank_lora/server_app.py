"""The Flower ServerApp: ``flwr run`` and the SuperLink load it by this name."""

from neurips26.shared.federated import make_server_app

__all__ = ["app"]

app = make_server_app({"method": "neurips26.frank_lora.method:FrankLoRA"})
