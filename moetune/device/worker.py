"""What runs in the device worker: check and time candidates of one problem at a time."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from moetune.device.accuracy import calibrate, compare, default_fault, fault
from moetune.device.answers import Attempt, Facts, Prepared, Run
from moetune.device.arena import POISON, Arena
from moetune.device.child import first_line
from moetune.device.machine import software
from moetune.device.timing import Timer, make_timer, timing_of
from moetune.kernel import BOTH, Operands, load_implementation, load_kernel
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.routing import Routing
from moetune.model.trial import Accuracy, Outcome, Phase, Timing

LAYER = 3
"""The stage number of the whole layer, combine included."""

SCREEN_SAMPLES = (5, 16)
SCREEN_US = 12_000.0
FINAL_ROUNDS = (8, 40)
FINAL_US = 150_000.0
PROBE_SAMPLES = 3


class Worker:
    """Holds the operands of one problem on one device, and answers the driver's calls."""

    def start(self, kernel: str, device: str, timer: str, measure_rates: bool) -> Facts:
        """Load a kernel's implementation and the timer; the first call."""
        torch.backends.cuda.matmul.allow_tf32 = False
        self._kernel = load_kernel(kernel)
        self._code = load_implementation(self._kernel.implementation)
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.ones(1 << 20, device=self._device).sum().item()  # the device answers, after a fault too
        self._timer: Timer = make_timer(timer, self._device)
        self._compiled = 0
        _count_compilations(self._on_compile)
        empty = torch.zeros(1, device=self._device)
        nothing = self._timer.capture(lambda: empty.zero_(), "empty")
        floor_us = statistics.median(self._timer.run([nothing] * 9))
        rates = _measure_rates(self._device) if measure_rates else {}
        return Facts(software(), self._timer.policy, round(floor_us, 3), rates)

    def _on_compile(self) -> None:
        self._compiled += 1

    def compiled(self) -> int:
        """Return how many binaries this worker had to compile itself."""
        return self._compiled

    def prepare(self, problem: Problem, seed: int, defaults: Sequence[Config], tile_rows: int) -> Prepared:
        """Draw operands, run the default over three seeds, and derive the accuracy limits."""
        begun = time.perf_counter()
        self._release()
        self._problem, self._seed, self._tile_rows, self._defaults = problem, seed, tile_rows, tuple(defaults)
        self._arena = Arena(self._device, tile_rows)
        self._operands = self._code.make_operands(problem, seed, self._arena)
        stages = (1, 2, LAYER) if BOTH not in self._kernel.stages else (LAYER,)
        found: dict[int, list[Accuracy]] = {stage: [] for stage in stages}
        for number in range(3):
            operands = self._operands
            if number:
                operands = self._code.make_operands(
                    problem, seed + number, Arena(self._device, tile_rows), weights_of=self._operands
                )
            self._code.quantise(operands)
            self._poison(operands, *stages)
            self._layer(operands, self._defaults)
            for stage in stages:
                reference = self._code.reference(stage, operands)
                output = self._code.decode(stage, operands)
                found[stage].append(compare(output, reference, None))
                if number == 0:
                    self._references[stage] = reference
                    self._default_outputs[stage] = output
            if number == 0:
                self._intermediate = [t.clone() for t in self._code.outputs(1, operands)] if 1 in stages else []
        self._limits = {stage: calibrate(found[stage], self._kernel.limits) for stage in stages}
        wrong = next((f for s in stages for a in found[s] if (f := default_fault(a, self._kernel.limits))), "")
        self._checksum = self._arena.checksum()
        counts = torch.bincount(self._operands.ids.flatten().long().cpu(), minlength=problem.experts)
        return Prepared(
            accuracy={stage: found[stage][0] for stage in stages},
            limits=self._limits,
            rows_per_expert=tuple(counts.tolist()),
            quantise_us=self._time_quantise(),
            seconds=time.perf_counter() - begun,
            fault=f"the default's output is wrong: {wrong}" if wrong else "",
        )

    def _release(self) -> None:
        self._operands: Operands = None  # type: ignore[assignment]  # between problems there are none
        self._references: dict[int, torch.Tensor] = {}
        self._default_outputs: dict[int, torch.Tensor] = {}
        self._intermediate: list[torch.Tensor] = []
        if hasattr(self, "_arena"):
            self._arena.release()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _time_quantise(self) -> float | None:
        if not self._code.quantise(self._operands):
            return None
        replay = self._timer.capture(lambda: self._code.quantise(self._operands), "quantise")
        return round(statistics.median(self._timer.run([replay] * 9)), 3)

    def _poison(self, operands: Operands, *stages: int) -> None:
        for stage in stages:
            for tensor in self._code.outputs(stage, operands):
                tensor.view(torch.uint8).fill_(POISON)

    def _layer(self, operands: Operands, configs: Sequence[Config]) -> None:
        self._code.sort(operands, *configs)
        if len(configs) == 1:
            self._code.launch(BOTH, configs[0], operands)
        else:
            self._code.launch(1, configs[0], operands)
            self._code.launch(2, configs[1], operands)
        self._code.combine(operands)

    def _stage(self, stage: int, config: Config) -> None:
        self._code.launch(stage, config, self._operands)
        if stage == BOTH:
            self._code.combine(self._operands)

    def attempt(self, stage: int, config: Config, give_up_us: float | None) -> Attempt:
        """Check one candidate of a stage, then time it; what goes wrong is its outcome."""
        seconds: dict[str, float] = {}
        phase = Phase.CHECK
        begun = time.perf_counter()
        accuracy = None
        try:
            outcome, reason, accuracy = self._check(stage, config)
            seconds["check"] = time.perf_counter() - begun
            if outcome is not Outcome.OK:
                return Attempt(phase, outcome, reason, accuracy, None, seconds, lost=outcome is Outcome.OUT_OF_BOUNDS)
            phase = Phase.SCREEN
            begun = time.perf_counter()
            timing = self._screen(stage, config, give_up_us)
            seconds["time"] = time.perf_counter() - begun
            return Attempt(phase, Outcome.OK, "", accuracy, timing, seconds)
        except Exception as error:  # a candidate may fail in any way
            return Attempt(phase, _classify(error), first_line(error), accuracy, None, seconds, lost=not self._alive())

    def _check(self, stage: int, config: Config) -> tuple[Outcome, str, Accuracy | None]:
        code, operands = self._code, self._operands
        seen = stage or LAYER
        self._restore(stage)
        code.sort(operands, config)
        self._poison(operands, seen)
        self._stage(stage, config)
        bits = [t.view(torch.uint8).clone() for t in code.outputs(seen, operands)]
        damage = self._damage(stage)
        if damage:
            return Outcome.OUT_OF_BOUNDS, damage, None
        accuracy = compare(code.decode(seen, operands), self._references[seen], self._default_outputs[seen])
        if accuracy.nonfinite:
            if self._reads_outside(stage, config, bits):
                return (
                    Outcome.OUT_OF_BOUNDS,
                    "reads outside its operands (its output depends on the guard zones)",
                    accuracy,
                )
            return Outcome.INACCURATE, fault(accuracy, self._limits[seen]) or "", accuracy
        self._poison(operands, seen)
        self._stage(stage, config)
        same = all(torch.equal(t.view(torch.uint8), b) for t, b in zip(code.outputs(seen, operands), bits, strict=True))
        if not same:
            return Outcome.NONDETERMINISTIC, "two runs on the same operands differ", accuracy
        wrong = fault(accuracy, self._limits[seen])
        return (Outcome.INACCURATE, wrong, accuracy) if wrong else (Outcome.OK, "", accuracy)

    def _restore(self, stage: int) -> None:
        """Give stage 2 the default's verified stage 1 output, which candidates of stage 1 overwrite."""
        if stage == 2:
            for tensor, kept in zip(self._code.outputs(1, self._operands), self._intermediate, strict=True):
                tensor.copy_(kept)

    def _damage(self, stage: int) -> str:
        damaged = self._arena.damaged_guards()
        if damaged:
            return f"writes outside its operands (the guard zone of {', '.join(damaged)} changed)"
        if self._arena.checksum() != self._checksum:
            return "writes into its operands (their checksum changed)"
        if stage == 2:
            now = zip(self._code.outputs(1, self._operands), self._intermediate, strict=True)
            if not all(torch.equal(t.view(torch.uint8), kept.view(torch.uint8)) for t, kept in now):
                return "writes into its input (stage 1's output changed)"
        return ""

    def _reads_outside(self, stage: int, config: Config, bits: list[torch.Tensor]) -> bool:
        seen = stage or LAYER
        self._arena.fill_guards(0)
        self._poison(self._operands, seen)
        self._stage(stage, config)
        outputs = self._code.outputs(seen, self._operands)
        differs = not all(torch.equal(t.view(torch.uint8), b) for t, b in zip(outputs, bits, strict=True))
        self._arena.fill_guards()
        return differs

    def _warm(self, stage: int) -> Callable[[], object] | None:
        if stage != 2:
            return None
        inputs = [t.view(torch.uint8).flatten() for t in self._code.outputs(1, self._operands)]
        words = [t[: t.numel() // 4 * 4].view(torch.int32) for t in inputs]
        return lambda: [w.sum() for w in words]

    def _label(self, what: str, *configs: Config) -> str:
        return " | ".join([self._problem.key, what, *map(str, configs)])

    def _screen(self, stage: int, config: Config, give_up_us: float | None) -> Timing:
        replay = self._timer.capture(
            lambda: self._stage(stage, config), self._label(f"stage {stage}", config), self._warm(stage)
        )
        samples = self._timer.run([replay] * (PROBE_SAMPLES + 1))[1:]  # the first replay uploads the graph
        middle = statistics.median(samples)
        if give_up_us is not None and middle > give_up_us:
            return timing_of(samples, dropped=True)
        low, high = SCREEN_SAMPLES
        wanted = max(low, min(high, int(SCREEN_US / max(middle, 1.0))))
        return timing_of(samples + self._timer.run([replay] * (wanted - len(samples))))

    def stage_final(self, stage: int, configs: Sequence[Config]) -> list[Timing]:
        """Re-time configs of one stage, interleaved; all have passed `attempt`."""
        self._restore(stage)
        self._code.sort(self._operands, *configs)
        replays = []
        for config in configs:
            self._stage(stage, config)
            label = self._label(f"stage {stage} final", config)
            launch = functools.partial(self._stage, stage, config)
            replays.append(self._timer.capture(launch, label, self._warm(stage)))
        return self._interleave(replays)

    def _interleave(self, replays: list[Any]) -> list[Timing]:
        first = self._timer.run(replays)  # uploads the graphs, and says how long a round takes
        low, high = FINAL_ROUNDS
        rounds = max(low, min(high, int(FINAL_US * len(replays) / max(sum(first), 1.0))))
        samples: list[list[float]] = [[] for _ in replays]
        for number in range(rounds):
            order = range(len(replays)) if number % 2 == 0 else range(len(replays) - 1, -1, -1)
            for index, value in zip(order, self._timer.run([replays[i] for i in order]), strict=True):
                samples[index].append(value)
        return [timing_of(s) for s in samples]

    def pair_final(self, pairs: Sequence[Sequence[Config]]) -> list[Run]:
        """Time whole layers interleaved (sort, stages, combine), each checked before and after."""
        before = [self._check_layer(self._operands, self._arena, pair, LAYER) for pair in pairs]
        replays = [
            self._timer.capture(functools.partial(self._layer, self._operands, pair), self._label("pair", *pair))
            for pair in pairs
        ]
        timings = self._interleave(replays)
        after = [self._check_layer(self._operands, self._arena, pair, LAYER) for pair in pairs]
        return [
            Run(timing, late[0], early[1] or late[1])
            for timing, early, late in zip(timings, before, after, strict=True)
        ]

    def _check_layer(
        self, operands: Operands, arena: Arena, pair: Sequence[Config], seen: int, reference: torch.Tensor | None = None,
        default: torch.Tensor | None = None,
    ) -> tuple[Accuracy, str]:  # fmt: skip
        own = reference is None
        reference = self._references[seen] if own else reference
        default = self._default_outputs[seen] if own else default
        bits = None
        wrong = ""
        for _ in range(2):
            self._poison(operands, *((1, 2, LAYER) if len(pair) == 2 else (LAYER,)))
            self._layer(operands, pair)
            now = [t.view(torch.uint8).clone() for t in self._code.outputs(LAYER, operands)]
            if bits is not None and not all(torch.equal(a, b) for a, b in zip(now, bits, strict=True)):
                wrong = "two runs of the layer differ"
            bits = now
        accuracy = compare(self._code.decode(LAYER, operands), reference, default)
        damaged = arena.damaged_guards() or self._arena.damaged_guards()
        if damaged:
            wrong = f"writes outside its operands (the guard zone of {', '.join(damaged)} changed)"
        return accuracy, wrong or fault(accuracy, self._limits[LAYER]) or ""

    def verify(self, pair: Sequence[Config]) -> tuple[Accuracy, str]:
        """Check a pair on other draws: a second seed, both sides of the bucket, and one hot expert among empty ones.

        Returns the worst accuracy seen and why the pair is wrong, if it is.
        """
        problem = self._problem
        tokens = [problem.tokens, problem.tokens // 2 + 1, problem.tokens - 1]
        variants = [(dataclasses.replace(problem, tokens=t), str(t)) for t in dict.fromkeys(tokens) if t > 0]
        variants.append((dataclasses.replace(problem, routing=Routing("hot", 0.5)), "hot routing"))
        worst: Accuracy | None = None
        for number, (variant, name) in enumerate(variants):
            arena = Arena(self._device, self._tile_rows)
            operands = self._code.make_operands(variant, self._seed + 101 + number, arena, weights_of=self._operands)
            self._code.quantise(operands)
            self._layer(operands, self._defaults)
            default = self._code.decode(LAYER, operands)
            reference = self._code.reference(LAYER, operands)
            accuracy, wrong = self._check_layer(operands, arena, pair, LAYER, reference, default)
            if worst is None or not accuracy.rel_l2 <= worst.rel_l2:
                worst = accuracy
            if wrong:
                what = f"{name} tokens" if name.isdigit() else name
                return accuracy, f"wrong on another draw ({what}): {wrong}"
        assert worst is not None
        return worst, ""

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
