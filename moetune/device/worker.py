"""What runs in the device worker: check and time candidates of one problem at a time."""

from __future__ import annotations

import functools
import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from moetune.device.answers import Attempt, Entrant, Facts, Prepared, Rival, Run
from moetune.device.checking import check, check_layer, refuse_damage, verify
from moetune.device.child import first_line
from moetune.device.loaded import Loaded, default_reason, load
from moetune.device.machine import software
from moetune.device.timing import Timer, make_timer, timing_of
from moetune.kernel import LAYER, load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.policy import Policy
from moetune.model.problem import Problem
from moetune.model.trial import Outcome, Phase, Timing


class Worker:
    """Holds the operands of one problem on one device, and answers the driver's calls."""

    def __init__(self) -> None:
        self._problem: Loaded | None = None
        self._compiled = 0

    @property
    def _loaded(self) -> Loaded:
        assert self._problem is not None, "prepare comes first"
        return self._problem

    def start(self, kernel: str, device: str, timer: str, policy: Policy, measure_rates: bool) -> Facts:
        """Load a kernel's implementation and the timer; the first call."""
        self._kernel = load_kernel(kernel)
        self._code = load_implementation(self._kernel.implementation)
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.ones(1 << 20, device=self._device).sum().item()  # the device answers, after a fault too
        self._timer: Timer = make_timer(timer, self._device)
        self._policy = policy
        _count_compilations(self._on_compile)
        empty = torch.zeros(1, device=self._device)
        nothing = self._timer.capture(lambda: empty.zero_(), "empty")
        floor_us = statistics.median(self._timer.run([nothing] * 9))
        rates = _measure_rates(self._device) if measure_rates else {}
        return Facts(software(), self._timer.policy, round(floor_us, 3), rates)

    def _on_compile(self) -> None:
        self._compiled += 1

    def compiled(self) -> int:
        """Return how many binaries this worker had to compile itself since last asked."""
        count, self._compiled = self._compiled, 0
        return count

    def prepare(self, problem: Problem, seed: int, defaults: Sequence[Config], tile_rows: int) -> Prepared:
        """Draw operands, run the default over several seeds, and derive the accuracy limits."""
        begun = time.perf_counter()
        self._problem = None  # gives the last problem's memory back, before this one takes its own
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        loaded = self._problem = load(self._kernel, self._code, self._device, problem, seed, tile_rows, defaults)
        ids = loaded.operands.ids.cpu()
        counts = torch.bincount(ids[ids >= 0], minlength=problem.experts)
        quantise_us = None
        if self._code.quantise(loaded.operands):
            replay = self._timer.capture(lambda: self._code.quantise(loaded.operands), "quantise")
            quantise_us = round(statistics.median(self._timer.run([replay] * 9)), 3)
        return Prepared(
            limits=loaded.limits,
            rows_per_expert=tuple(counts.tolist()),
            quantise_us=quantise_us,
            seconds=time.perf_counter() - begun,
            fault=default_reason(loaded),
            ids_digest=hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:16],
        )

    def attempt(self, stage: int, config: Config, give_up_us: float | None) -> Attempt:
        """Check one candidate of a stage, then time it; what goes wrong is its outcome."""
        seconds: dict[str, float] = {}
        phase, accuracy = Phase.CHECK, None
        begun = time.perf_counter()
        try:
            outcome, reason, accuracy = check(self._loaded, stage, config)
            seconds["check"] = time.perf_counter() - begun
            timing = None
            if outcome is Outcome.OK:
                phase = Phase.SCREEN
                begun = time.perf_counter()
                timing = self._screen(stage, config, give_up_us)
                seconds["screen"] = time.perf_counter() - begun
            damage = self._loaded.damage(stage)
            if damage:
                return Attempt(phase, Outcome.OUT_OF_BOUNDS, damage, accuracy, None, seconds, lost=True)
            return Attempt(phase, outcome, reason, accuracy, timing, seconds)
        except Exception as error:  # a candidate may fail in any way
            outcome, reason, lost = _classify(error), first_line(error), not self._alive()
            damage = "" if lost else self._loaded.damage(stage)
            if damage:
                outcome, reason = Outcome.OUT_OF_BOUNDS, f"{damage}, then {reason}"
            return Attempt(phase, outcome, reason, accuracy, None, seconds, lost or bool(damage))

    def _capture(self, stage: int, config: Config, what: str) -> Any:
        warm = None
        if stage == 2:  # reads what stage 1 has just written
            inputs = [t.view(torch.uint8).flatten() for t in self._code.outputs(1, self._loaded.operands)]
            words = [t[: t.numel() // 4 * 4].view(torch.int32) for t in inputs]
            warm = lambda: [w.sum() for w in words]  # noqa: E731 -- a name for what is passed on
        launch = functools.partial(self._loaded.run, stage, config)
        return self._timer.capture(launch, self._label(what, config), warm)

    def _label(self, what: str, *configs: Config) -> str:
        return " | ".join([self._loaded.problem.key, what, *map(str, configs)])

    def _screen(self, stage: int, config: Config, give_up_us: float | None) -> Timing:
        replay = self._capture(stage, config, f"stage {stage}")
        begun = time.perf_counter()
        probe = self._policy.probe_samples
        samples = self._timer.run([replay] * (probe + 1))[1:]  # the first replay uploads the graph
        each_us = (time.perf_counter() - begun) * 1e6 / (probe + 1)
        if give_up_us is not None and statistics.median(samples) > give_up_us:
            return timing_of(samples, dropped=True)
        low, high = self._policy.screen_samples
        wanted = max(low, min(high, int(self._policy.screen_us / max(each_us, 1.0))))
        return timing_of(samples + self._timer.run([replay] * (wanted - len(samples))))

    def stage_final(self, stage: int, configs: Sequence[Config]) -> list[Timing]:
        """Re-time configs of one stage, interleaved; all have passed `attempt` before."""
        self._loaded.restore(stage)
        self._code.sort(self._loaded.operands, *configs)
        for config in configs:
            self._loaded.run(stage, config)
        timings = self._interleave([self._capture(stage, config, f"stage {stage} final") for config in configs])
        refuse_damage(self._loaded, stage)
        return timings

    def _interleave(self, replays: list[Any]) -> list[Timing]:
        begun = time.perf_counter()
        self._timer.run(replays)  # uploads the graphs, and says how long a round takes
        round_us = (time.perf_counter() - begun) * 1e6
        low, high = self._policy.final_rounds
        rounds = max(low, min(high, int(self._policy.final_us * len(replays) / max(round_us, 1.0))))
        samples: list[list[float]] = [[] for _ in replays]
        for number in range(rounds):
            order = range(len(replays)) if number % 2 == 0 else range(len(replays) - 1, -1, -1)
            for index, value in zip(order, self._timer.run([replays[i] for i in order]), strict=True):
                samples[index].append(value)
        return [timing_of(s) for s in samples]

    def products_final(self, pairs: Sequence[tuple[Config, ...]]) -> list[Timing]:
        """Time the stages of pairs together, interleaved: one cold replay, without sort and combine."""
        self._code.sort(self._loaded.operands, *dict.fromkeys(config for pair in pairs for config in pair))
        for pair in pairs:
            self._loaded.products(pair)
        timings = self._interleave([
            self._timer.capture(functools.partial(self._loaded.products, pair), self._label("products", *pair))
            for pair in pairs
        ])  # fmt: skip
        refuse_damage(self._loaded, LAYER)
        return timings

    def rivals(self, configs: tuple[Config, ...]) -> list[str]:
        """Return the names of the kernel's other ways to compute the layer."""
        return list(self._loaded.rivals(configs))

    def layer_final(self, entrants: Sequence[Entrant]) -> list[Run]:
        """Time whole layers interleaved (sort, stages, combine, or a rival's way), each checked before and after."""
        before = [check_layer(self._loaded, entrant) for entrant in entrants]
        timings = self._interleave([
            self._timer.capture(functools.partial(self._loaded.layer, entrant), self._named(entrant))
            for entrant in entrants
        ])  # fmt: skip
        after = [check_layer(self._loaded, entrant) for entrant in entrants]
        refuse_damage(self._loaded, LAYER)
        return [
            Run(timing, late[0], early[1] or late[1])
            for timing, early, late in zip(timings, before, after, strict=True)
        ]

    def _named(self, entrant: Entrant) -> str:
        if isinstance(entrant, Rival):
            return self._label(f"rival {entrant.name}", *entrant.configs)
        return self._label("pair", *entrant)

    def verify(self, pairs: Sequence[tuple[Config, ...]]) -> list[str]:
        """Check pairs on other draws of activations, routing and tokens; return why each is wrong, or nothing."""
        return verify(self._loaded, pairs)

    def _alive(self) -> bool:
        if self._device.type != "cuda":
            return True
        try:
            torch.ones(1024, device=self._device).sum().item()
        except Exception:  # a poisoned context raises whatever the runtime likes
            return False
        return True


def _classify(error: Exception) -> Outcome:
    name = type(error).__name__
    if name in ("OutOfMemoryError", "OutOfResources"):
        return Outcome.RESOURCE_ERROR
    if name in (
        "CompilationError",
        "CompileTimeAssertionFailure",
        "PTXASError",
        "UnsupportedLanguageConstruct",
    ):
        return Outcome.COMPILE_ERROR
    return Outcome.RUNTIME_ERROR


def _count_compilations(on_compile: Callable[[], None]) -> None:
    try:
        from triton import knobs
    except ImportError:
        return

    def listener(*, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            on_compile()

    knobs.compilation.listener = listener


def _measure_rates(device: torch.device) -> dict[str, float]:
    """Return bytes/s of reads and operations/s of a bf16 product, the best of five, where nothing is published."""
    from moetune.device.timing import ClockTimer, GraphTimer

    gpu = device.type == "cuda"
    timer: Timer = GraphTimer(device) if gpu else ClockTimer(device)
    data = torch.ones((1 << 30 if gpu else 256 << 20) // 4, device=device)
    side = 8192 if gpu else 1024
    left = torch.randn(side, side, device=device, dtype=torch.bfloat16 if gpu else torch.float32)
    total, product = data.sum(), left @ left
    read = timer.capture(lambda: torch.sum(data, 0, out=total), "read")
    multiply = timer.capture(lambda: torch.mm(left, left, out=product), "product")
    read_us, multiply_us = min(timer.run([read] * 5)), min(timer.run([multiply] * 5))
    return {"bandwidth": data.numel() * 4 / read_us * 1e6, "bf16": 2.0 * side**3 / multiply_us * 1e6}
