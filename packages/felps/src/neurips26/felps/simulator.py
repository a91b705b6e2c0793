"""Iteration-level simulator of a continuous-batching engine with adapter slots.

An engine of this kind has one clock that advances by whole steps, so a plain loop over steps is exact; a process-based
event simulator would only be slower. Each step decodes one token of every running sequence, continues started prompts,
admits new requests as the policy says, and takes as long as the engine model says, loads included. Between events
nothing is touched per sequence: counts per adapter suffice until somebody finishes or outlives an estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from neurips26.felps.engine_model import EngineModel
from neurips26.felps.metrics import RunResult
from neurips26.felps.policy import Policy
from neurips26.felps.request import BASE, Request
from neurips26.felps.slots import AdapterSlots
from neurips26.felps.workload import Workload
from neurips26.shared.arrays import check_int, check_real

_NEVER = 1 << 60
_PATIENCE = 10_000  # samples that a policy may let pass with work waiting and an empty engine


@dataclass(slots=True, eq=False)
class _Run:
    """A running sequence. While it decodes, its progress is ``emitted_at_start + (tick - start)``."""

    request: Request
    index: int
    left: int  # prompt (and, after a preemption, recomputed) tokens still to process
    fresh: int  # of these, prompt tokens processed for the first time: the last ones
    context: int  # tokens held in memory when decoding starts
    emitted: int
    expected: float
    start: int = 0  # tick at which decoding started
    ends: int = _NEVER  # tick at which the last token comes
    outlives: int = 0  # tick from which tokens lie outside the estimate


class Simulator:
    """An engine of ``max_loras`` adapter slots driven by a policy.

    Args:
        engine: step times.
        max_loras: adapter slots ``M``.
        max_num_seqs: running sequences at most.
        max_num_batched_tokens: tokens processed in a step at most (decoded ones included).
        kv_tokens: tokens of context that fit in memory.
        eviction: see ``AdapterSlots``.
        chunked_prefill: long prompts may be split over steps; otherwise a prompt is processed whole, alone if it is
            longer than the budget.
        sample_every: seconds between samples of the timeline.
        record_slots: keep the load events (for the picture of slot occupancy).
    """

    def __init__(
        self,
        engine: EngineModel,
        max_loras: int = 8,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        kv_tokens: int = 60_000,
        eviction: str = "lru",
        chunked_prefill: bool = True,
        sample_every: float = 5.0,
        record_slots: bool = False,
    ) -> None:
        self.engine = engine
        self.max_loras = check_int(max_loras, "max_loras", minimum=1)
        self.max_num_seqs = check_int(max_num_seqs, "max_num_seqs", minimum=1)
        self.max_num_batched_tokens = check_int(max_num_batched_tokens, "max_num_batched_tokens", minimum=max_num_seqs)
        self.kv_tokens = check_int(kv_tokens, "kv_tokens", minimum=1)
        self.eviction = eviction
        self.chunked_prefill = chunked_prefill
        self.sample_every = check_real(sample_every, "sample_every", minimum=0.0, inclusive=False)
        self.record_slots = record_slots
        AdapterSlots(max_loras, eviction)  # a bad rule is refused here, not in the middle of a sweep

    def run(
        self,
        workload: Workload,
        policy: Policy,
        horizon: float | None = None,
        known_adapters: set[int] | None = None,
        aborts: dict[int, float] | None = None,
        removals: dict[int, float] | None = None,
        max_steps: int = 50_000_000,
    ) -> RunResult:
        """Serve ``workload`` with ``policy`` (a fresh one: it keeps its history).

        Args:
            workload: the requests.
            policy: who is admitted.
            horizon: stop at this time and count what is unfinished; ``None``: until everything is served.
            known_adapters: adapters that exist; a request of another one is an error. ``None``: all exist.
            aborts: request position -> time at which its client gives up.
            removals: adapter -> time at which its owner takes it away. Its running requests finish, the waiting ones are
                aborted, later ones refused; its slot is free once nobody uses it.
            max_steps: guard against a run without end.

        Raises:
            ValueError: a request of an unknown adapter, naming it; a horizon or an abort that cannot be; a policy that has
                served before.
            RuntimeError: the policy admits nobody though the engine is empty, or ``max_steps`` are not enough.
        """
        if known_adapters is not None:
            for adapter in workload.adapters:
                if int(adapter) not in known_adapters and adapter != 0:
                    raise ValueError(f"adapter {int(adapter)} of workload {workload.name!r} is not known to the engine")
        until = math.inf if horizon is None else check_real(horizon, "horizon", minimum=0.0, inclusive=False)
        for index in aborts or {}:
            check_int(index, "aborts", minimum=0, maximum=len(workload) - 1)
        return _Loop(self, workload, policy, until, aborts or {}, removals or {}, max_steps).run()


class _Loop:
    """State of one run; ``now``, ``can_admit`` and ``admit`` are the view that ``Policy.select`` needs."""

    def __init__(
        self,
        sim: Simulator,
        workload: Workload,
        policy: Policy,
        horizon: float,
        aborts: dict[int, float],
        removals: dict[int, float],
        max_steps: int,
    ) -> None:
        self.sim, self.workload, self.policy = sim, workload, policy
        self.horizon, self.max_steps = horizon, max_steps
        # What somebody outside does, by time: a client gives up (0, request), an owner removes an adapter (1, adapter).
        given_up = [(max(t, float(workload.arrival[i])), 0, i) for i, t in aborts.items()]
        self.orders = sorted(given_up + [(t, 1, a) for a, t in removals.items()])
        self.removed: set[int] = set()
        engine = sim.engine
        self.load_seconds = {int(a): engine.load_seconds(workload.rank(int(a))) for a in workload.adapters}
        score = getattr(policy, "served_fraction", None)
        self.slots = AdapterSlots(sim.max_loras, sim.eviction, self.load_seconds, score)
        policy.bind(self.slots)
        self.now = 0.0
        self.requests = list(workload.requests())
        self.arrivals = [request.arrival for request in self.requests] + [math.inf]
        self.n_arrived = self.n_orders = 0  # how many of them have happened
        n, top = len(workload), int(workload.adapters.max()) + 1
        self.first = np.full(n, np.nan)
        self.finish = np.full(n, np.nan)
        self.emitted = np.zeros(n, dtype=np.int64)
        self.rejected = np.zeros(n, dtype=bool)
        self.aborted = np.zeros(n, dtype=bool)
        self.served = [0.0] * top  # the truth, whatever the policy believes
        self.arrived = [0.0] * top
        self.samples: list[tuple] = []
        self.next_sample = sim.sample_every
        self.events: list[tuple] = []
        self.decoding: list[_Run] = []
        self.prefilling: list[_Run] = []
        self.by_id: dict[int, _Run] = {}
        self.n_decode: dict[int, int] = {}
        self.n_within: dict[int, int] = {}
        self.tick = 0
        self.next_end = self.next_outlived = _NEVER
        self.kv = 0
        self.budget = self.stuck = 0
        self.stall = 0.0
        self.step_prefill = self.step_prompts = 0
        self.step_fresh: dict[int, int] = {}
        self.started: list[_Run] = []
        self.steps = self.preemptions = 0
        self.stall_total = self.busy = 0.0
        self.recompute: dict[int, int] = {}  # id -> tokens emitted before a preemption
        self.prompt_done: dict[int, int] = {}  # id -> prompt tokens processed before a preemption

    # View of Policy.select -------------------------------------------------------------------------------------------
    def can_admit(self, request: Request) -> bool:
        sim = self.sim
        if self.budget < 1 or len(self.by_id) >= sim.max_num_seqs:
            return False
        tokens = request.prompt_tokens + self.recompute.get(request.id, 0)
        # Decoding sequences need a token each in this step; the new one needs its context and its first token.
        if self.kv + len(self.decoding) + tokens + 1 > sim.kv_tokens:
            return False
        if sim.chunked_prefill or tokens <= self.budget:
            return True
        return tokens > sim.max_num_batched_tokens and self.budget + len(self.decoding) == sim.max_num_batched_tokens

    def admit(self, request: Request) -> tuple[bool, int | None]:
        loaded, evicted = self.slots.acquire(request.adapter)
        if loaded:
            if not self._load(request):
                return False, evicted
            if self.sim.record_slots:
                self.events.append((self.now, self.slots.slot_of(request.adapter), request.adapter, evicted))
        emitted = self.recompute.pop(request.id, 0)
        context = request.prompt_tokens + emitted
        done = self.prompt_done.pop(request.id, 0)
        run = _Run(
            request, int(request.id), context, request.prompt_tokens - done, context, emitted, self._expected(request)
        )
        self.by_id[request.id] = run
        self.kv += context
        self._prefill(run)
        return loaded, evicted

    # What a real engine does differently ------------------------------------------------------------------------------
    def _load(self, request: Request) -> bool:
        """Bring the adapter of ``request`` into its slot; False when that failed and the request has been ended."""
        self.stall += self.load_seconds[request.adapter]
        return True

    def _execute(self, decode_seqs: int, kv_read: int) -> float:
        """Do the step (decode ``self.decoding``, process the prompts of ``self.started``); returns its seconds."""
        engine = self.sim.engine
        return (
            engine.step(self.step_prefill, self.step_prompts, decode_seqs, kv_read, self._decode_adapters())
            + self.stall
        )

    def _decode_adapters(self) -> int:
        """Adapters among the decoding sequences."""
        return len(self.n_decode) - (BASE in self.n_decode)

    may_jump = True
    """Equal decode steps may be played at once."""

    def _expected(self, request: Request) -> float:
        return self.policy.ledger.expected(request.id) if self.policy.uses_expected else 0.0

    def _prefill(self, run: _Run) -> None:
        """Process as much of the prompt as the budget allows in this step."""
        chunk = run.left if not self.sim.chunked_prefill else min(run.left, self.budget)
        if chunk <= 0:
            self.prefilling.append(run)
            return
        run.left -= chunk
        self.budget -= chunk
        self.step_prefill += chunk
        self.step_prompts += 1
        repeated = max(0, min(chunk, run.left + chunk - run.fresh))
        fresh = chunk - repeated
        run.fresh -= fresh
        if fresh:
            adapter = run.request.adapter
            self.step_fresh[adapter] = self.step_fresh.get(adapter, 0) + fresh
        (self.started if run.left == 0 else self.prefilling).append(run)

    # The run ---------------------------------------------------------------------------------------------------------
    def run(self) -> RunResult:
        while self._next_work():
            self._make_room()
            decode_seqs, kv_read = self._compose()
            end, repeat = self._play(decode_seqs, kv_read)
            self._pass(end, repeat, decode_seqs)
            self._charge(repeat)
            if self.started:
                self._start_decoding()
            if self.next_end <= self.tick:
                self._finish()
        if not self.samples or self.samples[-1][0] < self.now:
            self._sample()
        return self._result()

    def _next_work(self) -> bool:
        """Let happen what is due and skip idle time; False when the run is over."""
        while True:
            while self.arrivals[self.n_arrived] <= self.now:
                self._arrive(self.requests[self.n_arrived])
                self.n_arrived += 1
            while self.n_orders < len(self.orders) and self.orders[self.n_orders][0] <= self.now:
                _, removal, which = self.orders[self.n_orders]
                if removal:
                    self._remove(which)
                else:
                    self._abort(self.requests[which])
                self.n_orders += 1
            if self.now >= self.next_sample:
                self._sample()
            if self.now >= self.horizon:
                return False
            if self.decoding or self.prefilling or self.policy.waiting:
                return True
            if min(self.arrivals[self.n_arrived], self.horizon) == math.inf:
                return False
            upcoming = self._next_event()
            while self.next_sample < upcoming:  # an idle engine is sampled too
                self.now = self.next_sample
                self._sample()
            self.now = max(self.now, upcoming)

    def _next_event(self) -> float:
        """When somebody outside acts next, or the run ends."""
        until = min(self.arrivals[self.n_arrived], self.horizon)
        return min(until, self.orders[self.n_orders][0]) if self.n_orders < len(self.orders) else until

    def _compose(self) -> tuple[int, int]:
        """Choose who takes part in the step; returns the decoding sequences and the tokens of context that they read."""
        sim = self.sim
        decode_seqs = len(self.decoding)
        # Memory of started prompts is reserved, but decoding sequences do not read it.
        kv_read = self.kv - sum(run.context for run in self.prefilling) if self.prefilling else self.kv
        self.budget = sim.max_num_batched_tokens - decode_seqs
        self.step_prefill = self.step_prompts = 0
        self.step_fresh = {}
        self.started = []
        self.stall = 0.0
        ongoing, self.prefilling = self.prefilling, []
        for run in ongoing:
            self._prefill(run)
        if self.policy.waiting and self.budget > 0 and len(self.by_id) < sim.max_num_seqs:
            self._admit()
        return decode_seqs, kv_read

    def _play(self, decode_seqs: int, kv_read: int) -> tuple[float, int]:
        """Do the step; returns when it ends and how many equal steps were played at once (0: nobody takes part)."""
        sim, engine, waiting = self.sim, self.sim.engine, self.policy.waiting
        end, repeat = self.now + self._execute(decode_seqs, kv_read), 1
        if not (decode_seqs or self.step_prompts):
            # Work waits and the engine is empty, but the policy admits nobody: only time can change its mind.
            self.stuck += 1
            if self.stuck > _PATIENCE:
                raise RuntimeError(f"policy {self.policy.name!r} admits none of {waiting} waiting requests")
            return min(self._next_event(), self.next_sample), 0
        self.stuck = 0
        # Nothing but decoding, and nobody who could be admitted: play equal steps up to the next event at once.
        if self.may_jump and not self.step_prompts and (not waiting or decode_seqs >= sim.max_num_seqs):
            until = min(self._next_event(), self.next_sample)
            most = min(self.next_end - self.tick, (sim.kv_tokens - self.kv) // max(decode_seqs, 1))
            adapters = self._decode_adapters()
            while repeat < most and end < until:
                end += engine.step(0, 0, decode_seqs, kv_read + decode_seqs * repeat, adapters)
                repeat += 1
        return end, repeat

    def _pass(self, end: float, repeat: int, decode_seqs: int) -> None:
        """Time goes on to the end of the steps, and the decoding sequences are a token longer for each."""
        self.busy += (end - self.now) if repeat else 0.0
        self.stall_total += self.stall
        self.now = max(end, self.now)
        self.steps += repeat
        if self.steps > self.max_steps:
            raise RuntimeError(f"no end after {self.max_steps} steps under policy {self.policy.name!r}")
        self.tick += repeat
        self.kv += decode_seqs * repeat

    def _charge(self, repeat: int) -> None:
        """Book the tokens of the steps, adapter by adapter."""
        policy, fresh = self.policy, self.step_fresh
        charges = []
        for adapter, count in self.n_decode.items():
            tokens = count * repeat
            self.served[adapter] += fresh.get(adapter, 0) * policy.input_price + policy.output_price * tokens
            charges.append((adapter, fresh.pop(adapter, 0), tokens, self.n_within.get(adapter, 0) * repeat))
        for adapter, tokens in fresh.items():
            self.served[adapter] += tokens * policy.input_price
            charges.append((adapter, tokens, 0, 0))
        if repeat and self.next_outlived < self.tick:
            charges = self._exact_within(charges, repeat)
        if policy.uses_service and charges:
            policy.on_batch(charges, self.now)

    def _admit(self) -> None:
        for _ in self.policy.select(self):
            pass

    def _refusal(self, request: Request) -> str:
        """Why a request can never be served, or nothing: it is refused at the door, so that it blocks nobody."""
        tokens, room = request.prompt_tokens + request.output_tokens, self.sim.kv_tokens
        if tokens > room:
            return f"expected at most {room} tokens of prompt and output, got {tokens}"
        return f"adapter {request.adapter} was removed" if request.adapter in self.removed else ""

    def _failed(self, request: Request, why: str) -> None:
        """Hook: a request was refused or cannot be served any more."""

    def _remove(self, adapter: int) -> None:
        """The owner takes an adapter away: who waits for it gets an error, who runs finishes."""
        self.removed.add(adapter)
        queue = self.policy.queues.get(adapter)
        for request in list(queue) if queue is not None else []:
            self._failed(request, f"adapter {adapter} was removed")
            self._abort(request)
        self._vacate(adapter)

    def _vacate(self, adapter: int) -> None:
        """A removed adapter leaves its slot as soon as nobody runs with it."""
        if adapter in self.removed and adapter not in self.slots.pinned:
            self.slots.forget(adapter)

    def _arrive(self, request: Request) -> None:
        why = self._refusal(request)
        if why:
            self.rejected[request.id] = True
            self._failed(request, why)
            return
        policy = self.policy
        cost = policy.input_price * request.prompt_tokens + policy.output_price * request.output_tokens
        self.arrived[request.adapter] += cost
        policy.on_arrival(request, self.now)

    def _start_decoding(self) -> None:
        """Prompts completed in this step have emitted their first token."""
        charges = []
        for run in self.started:
            request = run.request
            if math.isnan(self.first[run.index]):
                self.first[run.index] = self.now
            run.emitted += 1
            self.kv += 1
            adapter = request.adapter
            self.served[adapter] += self.policy.output_price
            charges.append((adapter, 0, 1, 1 if run.emitted <= run.expected else 0))
            run.start = self.tick
            run.ends = self.tick + request.output_tokens - run.emitted
            run.outlives = self.tick + max(0, int(run.expected) - run.emitted)
            self.decoding.append(run)
            self.n_decode[adapter] = self.n_decode.get(adapter, 0) + 1
            if run.outlives > self.tick:
                self.n_within[adapter] = self.n_within.get(adapter, 0) + 1
                self.next_outlived = min(self.next_outlived, run.outlives)
            self.next_end = min(self.next_end, run.ends)
        if self.policy.uses_service:
            self.policy.on_batch(charges, self.now)

    def _exact_within(self, charges: list[tuple], repeat: int) -> list[tuple]:
        """Some sequences passed their estimates inside the last steps: count their tokens one by one."""
        within: dict[int, int] = {}
        self.n_within = {}
        self.next_outlived = _NEVER
        before = self.tick - repeat
        for run in self.decoding:
            adapter = run.request.adapter
            inside = min(self.tick, run.outlives) - before
            if inside > 0:
                within[adapter] = within.get(adapter, 0) + inside
            if run.outlives > self.tick:
                self.n_within[adapter] = self.n_within.get(adapter, 0) + 1
                self.next_outlived = min(self.next_outlived, run.outlives)
        return [(a, prefill, decode, within.get(a, 0) if decode else 0) for a, prefill, decode, _ in charges]

    def _leave(self, run: _Run) -> None:
        """A decoding sequence stops, for whatever reason: counts, memory, pin."""
        adapter = run.request.adapter
        run.emitted += self.tick - run.start
        self.emitted[run.index] = run.emitted
        if self.n_decode[adapter] == 1:
            del self.n_decode[adapter]
        else:
            self.n_decode[adapter] -= 1
        if run.outlives > self.tick:
            self.n_within[adapter] -= 1
        self.kv -= run.request.prompt_tokens + run.emitted
        del self.by_id[run.request.id]
        self.slots.release(adapter)
        self._vacate(adapter)

    def _finish(self) -> None:
        done = [run for run in self.decoding if run.ends <= self.tick]
        self.decoding = [run for run in self.decoding if run.ends > self.tick]
        for run in done:
            self._leave(run)
            self.finish[run.index] = self.now
            self.policy.on_finished(run.request, self.now, "stop", run.emitted, 0)
        self.next_end = min((run.ends for run in self.decoding), default=_NEVER)

    def _make_room(self) -> None:
        """Preempt the youngest sequences until every decoding one can grow by a token."""
        while self.kv + len(self.decoding) > self.sim.kv_tokens and len(self.by_id) > 1:
            run = self.prefilling.pop() if self.prefilling else self.decoding.pop()
            self._drop(run)
            self.recompute[run.request.id] = run.emitted
            self.prompt_done[run.request.id] = run.request.prompt_tokens - run.fresh
            self.policy.on_preempted(run.request, self.now, run.emitted, run.fresh)
            self.preemptions += 1
            if run.request.adapter in self.removed:
                self._failed(run.request, f"adapter {run.request.adapter} was removed")
                self._abort(run.request)

    def _drop(self, run: _Run) -> None:
        """Take a running sequence (already out of its list) off the engine."""
        if run.ends == _NEVER:
            self.kv -= run.context
            del self.by_id[run.request.id]
            self.slots.release(run.request.adapter)
            self._vacate(run.request.adapter)
        else:
            self._leave(run)
            self.next_end = min((other.ends for other in self.decoding), default=_NEVER)

    def _abort(self, request: Request) -> None:
        index = int(request.id)
        if not math.isnan(self.finish[index]) or self.rejected[index]:
            return
        run = self.by_id.get(request.id)
        if run is not None:
            (self.decoding if run in self.decoding else self.prefilling).remove(run)
            self._drop(run)
            emitted, left = run.emitted, run.fresh
        else:
            emitted = self.recompute.pop(request.id, 0)
            left = request.prompt_tokens - self.prompt_done.pop(request.id, 0)
        self.aborted[index] = True
        self.emitted[index] = emitted
        # Work that nobody wants any more is no workload: what was delivered stays on both sides.
        policy = self.policy
        unwanted = int(self.workload.output[index]) - emitted
        self.arrived[request.adapter] -= policy.input_price * left + policy.output_price * unwanted
        policy.on_finished(request, self.now, "abort", emitted, left)

    def _sample(self) -> None:
        waiting = self.policy.waiting
        self.samples.append(
            (self.now, tuple(self.served), tuple(self.arrived), self.slots.loads, waiting, len(self.by_id), self.kv,
             len(self.slots.pinned))
        )  # fmt: skip
        step = self.sim.sample_every
        self.next_sample = (math.floor(self.now / step + 1e-9) + 1) * step

    def _result(self) -> RunResult:
        for run in self.by_id.values():
            self.emitted[run.index] = run.emitted + (self.tick - run.start if run.ends != _NEVER else 0)
        for request_id, emitted in self.recompute.items():
            self.emitted[request_id] = emitted
        times, served, arrived, loads, waiting, running, kv, pinned = zip(*self.samples)
        workload, sim = self.workload, self.sim
        return RunResult(
            workload=workload,
            policy=self.policy.describe(),
            engine={
                "max_loras": sim.max_loras, "max_num_seqs": sim.max_num_seqs, "kv_tokens": sim.kv_tokens,
                "max_num_batched_tokens": sim.max_num_batched_tokens, "eviction": sim.eviction,
            },
            prices=(self.policy.input_price, self.policy.output_price),
            makespan=self.now,
            first_token=self.first,
            finish=self.finish,
            emitted=self.emitted,
            rejected=self.rejected,
            aborted=self.aborted,
            sample_time=np.array(times),
            sample_served=np.array(served),
            sample_arrived=np.array(arrived),
            sample_loads=np.array(loads),
            sample_waiting=np.array(waiting),
            sample_running=np.array(running),
            sample_kv=np.array(kv),
            sample_pinned=np.array(pinned),
            loads=self.slots.loads,
            hits=self.slots.hits,
            stall_seconds=self.stall_total,
            busy_seconds=self.busy,
            steps=self.steps,
            preemptions=self.preemptions,
            slot_events=self.events,
        )  # fmt: skip
