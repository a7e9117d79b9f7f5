"""What the lanes of a sweep share: what is to do, what is known, and the ledger, under one lock."""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass, field

from moetune.errors import MoetuneError
from moetune.ledger import Ledger, Records
from moetune.model.config import Config
from moetune.model.problem import Problem
from moetune.model.progress import Current
from moetune.model.trial import Final, Trial
from moetune.model.verdict import Decision, Verdict
from moetune.search import Known, starting_configs
from moetune.space import Pool
from moetune.workbench import Effort

_NOTES = 3


@dataclass
class Tally:
    """What a sweep has done so far, for whoever watches; guarded by the board's lock.

    `kept` are the trials of earlier sessions, `notes` the last failures, `current` what each device does.
    """

    total: int
    kept: int = 0
    done: int = 0
    timed: int = 0
    census: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    current: dict[str, Current] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)


class Board:
    """The shared state of a sweep; use it as a context manager to read several things at once."""

    def __init__(
        self,
        problems: tuple[Problem, ...],
        effort: Effort,
        start_from: tuple[Known, ...],
        ledger: Ledger,
        records: Records | None,
    ) -> None:
        self.problems = problems
        self.tally = Tally(len(problems))
        self.failure: MoetuneError | None = None
        self.verdicts: dict[str, Verdict] = {}
        self._effort = effort
        self._start_from = start_from
        self._ledger = ledger
        self._changed = threading.Condition(threading.RLock())
        self._todo = list(problems)
        self._running: set[str] = set()
        self._stopped = False
        self._trials: dict[tuple[str, str, int, Config], Trial] = {}
        self._past: list[Verdict] = []
        if records is not None:
            for trial in records.trials:
                self._trials[trial.problem, trial.identity, trial.stage, trial.config] = trial
            self._past = [v for v in records.verdicts if v.complete and v.decision is not Decision.FAILED]
        self.tally.kept = len(self._trials)

    def __enter__(self) -> Board:
        self._changed.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._changed.release()

    def known(self, problem: str, identity: str, stage: int, config: Config) -> Trial | None:
        """Return the trial already made, or None."""
        with self._changed:
            return self._trials.get((problem, identity, stage, config))

    def trial(self, trial: Trial) -> None:
        """Write and remember a trial."""
        with self._changed:
            self._ledger.trials([trial])
            self._trials[trial.problem, trial.identity, trial.stage, trial.config] = trial
            tally = self.tally
            tally.timed += trial.timing is not None
            tally.census[trial.outcome] = tally.census.get(trial.outcome, 0) + 1
            if trial.reason:
                tally.notes = [*tally.notes, f"{trial.outcome}: {trial.config}: {trial.reason}"][-_NOTES:]

    def final(self, final: Final) -> None:
        """Write a final."""
        with self._changed:
            self._ledger.final(final)

    def past(self, problem: Problem, identity: str, defaults: tuple[Config, ...]) -> Verdict | None:
        """Return the verdict of an earlier session that stands: same measurement, defaults and effort, and complete."""
        wanted = (problem.key, identity, defaults[0], defaults[-1], dataclasses.asdict(self._effort))
        same = (v for v in self._past if (v.problem, v.identity, v.default1, v.default2, v.search) == wanted)
        return max(same, key=lambda v: v.finished, default=None)

    def next(self) -> Problem | None:
        """Return a problem whose neighbours are done, waiting for one; None when nothing is left or all stops."""
        with self._changed:
            while not self._stopped and self._todo:
                for problem in self._todo:
                    if not any(n.key in self._running or n in self._todo for n in self.neighbours(problem)):
                        self._todo.remove(problem)
                        self._running.add(problem.key)
                        return problem
                self._changed.wait(0.5)
            return None

    def neighbours(self, problem: Problem) -> list[Problem]:
        """Return the problems that give starting configs: the next smaller bucket, and the same at the TP before."""
        same = [p for p in self.problems if p.chain == problem.chain and p.tokens < problem.tokens]
        beside = [p for p in self.problems if dataclasses.replace(p, tp=problem.tp) == problem and p.tp < problem.tp]
        return [*same[-1:], *beside[-1:]]

    def done(self, problem: Problem, verdict: Verdict, *, fresh: bool) -> None:
        """Keep a verdict, and write it unless it stood in the ledger."""
        with self._changed:
            if fresh:
                self._ledger.verdict(verdict)
            self.verdicts[problem.key] = verdict
            self._running.discard(problem.key)
            self.tally.done += 1
            self._changed.notify_all()

    def header(self, facts: dict[str, object]) -> None:
        """Write what a worker measures with."""
        with self._changed:
            self._ledger.header(facts)

    def stop(self, failure: MoetuneError | None = None) -> None:
        """Let no lane take another problem."""
        with self._changed:
            self.failure = self.failure or failure
            self._stopped = True
            self._changed.notify_all()

    def left(self) -> int:
        """Return how many problems have no verdict yet."""
        with self._changed:
            return self.tally.total - self.tally.done

    def starting(self, problem: Problem, stage: int, pool: Pool) -> list[Config]:
        """Return the starting configs of a stage from done neighbours and the user's file."""
        with self._changed:
            near = {n.key: self.verdicts[n.key].identity for n in self.neighbours(problem) if n.key in self.verdicts}
            facts = {p.key: p.facts() for p in self.problems if p.key in near}
            known = [
                Known(facts[t.problem], t.stage, t.config, t.timing.median_us)
                for t in self._trials.values()
                if near.get(t.problem) == t.identity and t.stage == stage and t.ok and t.timing
            ]
        return starting_configs(problem, stage, pool, [*known, *self._start_from])
