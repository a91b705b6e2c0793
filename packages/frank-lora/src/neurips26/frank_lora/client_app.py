"""The Flower ClientApp: ``flwr run`` and SuperNodes load it by this name."""

from neurips26.shared.federated import make_client_app

__all__ = ["app"]

app = make_client_app({"method": "neurips26.frank_lora.method:FrankLoRA"})
