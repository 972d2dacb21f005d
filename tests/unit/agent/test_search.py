"""What the search policy proposes, without a device: rules and what they gain are data, and drawn at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent import cache
from cuda_agent.agent.budget import Budget
from cuda_agent.agent.memory import Memory
from cuda_agent.agent.policies import WORTH, State, Step, choose, search
from cuda_agent.agent.trajectory import Trajectory
from cuda_agent.judge import JudgeOptions
from cuda_agent.model import Candidate
from cuda_agent.rewrite import Move, Recipe
from cuda_agent.rewrite.rule import Context


@dataclass
class World:
    """`gains`: rule → gain of each of its parameters, None for one that the judge refuses. `pairs`: what two rules give
    beyond that when they are together."""

    gains: Mapping[str, Sequence[float | None]]
    pairs: Mapping[frozenset[str], float] = field(default_factory=dict)
    minor: str = ""  # the rules that hardly ever give anything alone
    judged: list[str] = field(default_factory=list)

    def moves(self, context: Any) -> Iterator[tuple[Move, Candidate]]:
        base: Candidate | None = context.base
        before = base.origin.removeprefix("rule:").split("+") if base else []
        for rule, gains in self.gains.items():
            if rule not in {name[0] for name in before}:
                for number in range(len(gains)):
                    label = f"{rule}(n={number})"
                    candidate = made("+".join([*before, label]), base.id if base else None)
                    yield Move(rule, 0, label, rule in self.minor), candidate

    def replay(self, recipe: Recipe, context_of: Any) -> Candidate | None:
        found: Candidate | None = None
        for move in recipe:
            found = made("+".join([*(found.id.split("+") if found else []), move.label]), found.id if found else None)
        return found

    def score(self, candidate: Candidate) -> float | None:
        parts = [(label[0], int(label.partition("=")[2].rstrip(")"))) for label in candidate.id.split("+")]
        factors = [self.gains[rule][number] for rule, number in parts]
        total = 1.0
        for factor in factors:
            if factor is None:
                return None
            total *= factor
        rules = {rule for rule, _ in parts}
        for pair, factor in self.pairs.items():
            if pair <= rules:
                total *= factor
        return total

    def search(self, candidates: int = 1000, order: Sequence[str] = ()) -> State:
        """A whole search, with the budget's end in the middle of a round as the loop has it."""
        policy = search.Search(order)
        state = State(lambda base: cast(Any, SimpleNamespace(base=base, device=None)), Budget(candidates=candidates))
        while found := policy.propose(state):
            for one in found:
                if state.budget.exhausted:
                    return state
                state.budget.tried += 1
                self.judged.append(one.text)
                state.steps.append(Step(one, None, self.score(one)))
        return state


def made(origin: str, parent: str | None = None) -> Candidate:
    return Candidate("k", "", origin, (), f"rule:{origin}", parent=parent, id=origin)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(gains: Mapping[str, Sequence[float | None]], pairs: Mapping[str, float] | None = None) -> World:
        found = World(gains, {frozenset(pair): factor for pair, factor in (pairs or {}).items()})
        monkeypatch.setattr(search, "moves", found.moves)
        monkeypatch.setattr(search, "replay", found.replay)
        return found

    return make


def chosen(state: State) -> str:
    found = choose(state.steps)
    assert found is not None
    return found.candidate.id


def test_single_edits_first_then_on_the_best(world: Any) -> None:
    found = world({"a": [2.0], "b": [1.5]})
    state = found.search()
    assert found.judged[:3] == ["a(n=0)", "b(n=0)", "a(n=0)+b(n=0)"]
    assert chosen(state) == "a(n=0)+b(n=0)"


def test_what_gave_nothing_alone_is_tried_on_the_best(world: Any) -> None:
    """Vectorising gives nothing while a thread owns a row, and much when a warp does."""
    state = world({"a": [3.0], "b": [1.0], "c": [1.4]}, {"ab": 1.5}).search()
    assert chosen(state) in ("a(n=0)+c(n=0)+b(n=0)", "a(n=0)+b(n=0)+c(n=0)")


def test_two_that_give_something_only_together(world: Any) -> None:
    state = world({"a": [1.0], "b": [0.99]}, {"ab": 1.3}).search()
    assert chosen(state) == "a(n=0)+b(n=0)"


def test_numbers_are_tuned_on_the_best(world: Any) -> None:
    """The fourth value of b is never tried before a has won."""
    found = world({"a": [2.0, 2.2, 2.1], "b": [1.1, 1.05, 1.2, 1.4]})
    assert chosen(found.search()) == "a(n=1)+b(n=3)"


def test_numbers_are_not_tuned_without_times(world: Any) -> None:
    found = world({"a": [2.0, 2.2, 2.1], "b": [1.1, 1.05, 1.2, 1.4]})
    policy = search.Search()
    device = SimpleNamespace(kind="emulator")
    state = State(lambda base: cast(Any, SimpleNamespace(base=base, device=device)), Budget())
    while proposed := policy.propose(state):
        state.steps += [Step(one, None, found.score(one)) for one in proposed]
    assert not any("n=2" in step.candidate.id or "n=3" in step.candidate.id for step in state.steps)


def test_a_rule_in_the_middle_is_left_out(world: Any) -> None:
    """b helped when it was taken, and is worth nothing below c."""
    found = world({"a": [3.0], "b": [1.05], "c": [1.04]}, {"bc": 1 / 1.049, "ac": 1.5})
    assert chosen(found.search()) == "a(n=0)+c(n=0)"


def test_the_order_of_the_limits_goes_first(world: Any) -> None:
    found = world({"a": [1.1], "b": [1.2], "c": [1.3]})
    found.search(order=["c", "b"])
    assert found.judged[:3] == ["c(n=0)", "b(n=0)", "a(n=0)"]


def test_what_hardly_gives_anything_alone_waits_for_the_others(world: Any) -> None:
    """First what promises more and what is built of it; then the rest, and on the best what gave something."""
    found = world({"a": [1.01], "b": [2.0], "c": [1.5], "d": [1.0]})
    found.minor = "ad"
    state = found.search()
    assert found.judged[:3] == ["b(n=0)", "c(n=0)", "b(n=0)+c(n=0)"]
    assert found.judged[3:5] == ["a(n=0)", "d(n=0)"]
    assert found.judged[5] == "b(n=0)+c(n=0)+a(n=0)"
    assert chosen(state) == "b(n=0)+c(n=0)+a(n=0)"


def test_what_hardly_gives_anything_alone_is_all_there_is(world: Any) -> None:
    found = world({"a": [1.2], "b": [1.1]})
    found.minor = "ab"
    found.search()
    assert found.judged[:3] == ["a(n=0)", "b(n=0)", "a(n=0)+b(n=0)"]


def test_a_twin_takes_no_place_in_the_beam(world: Any) -> None:
    """b is a by another text: what stands second is c."""
    found = world({"a": [2.0], "b": [2.0], "c": [1.9], "d": [1.5]}, {"cd": 2.0})
    policy = search.Search()
    state = State(lambda base: cast(Any, SimpleNamespace(base=base, device=None)), Budget())
    for one in policy.propose(state):
        state.steps.append(Step(one, None, found.score(one), twin=one.id.startswith("b")))
    parents = []
    for _ in range(2):
        proposed = policy.propose(state)
        parents.append({one.parent for one in proposed})
        state.steps += [Step(one, None, 0.5) for one in proposed]
    assert parents == [{"a(n=0)"}, {"c(n=0)"}]


def test_refused_ones_are_not_built_on(world: Any) -> None:
    found = world({"a": [None], "b": [1.2]})
    found.search()
    assert not any(text.startswith("a(n=0)+") for text in found.judged)


GAIN = st.one_of(st.none(), st.floats(0.5, 3.0))
GAINS = st.dictionaries(st.sampled_from("abcde"), st.lists(GAIN, min_size=1, max_size=4), min_size=1)
PAIRS = st.dictionaries(st.sampled_from(["ab", "ac", "bd", "ce", "de"]), st.floats(0.5, 2.0))


@given(GAINS, PAIRS, st.integers(1, 60))
def test_a_search_keeps_its_promises(gains: Any, pairs: Any, candidates: int) -> None:
    found = World(gains, {frozenset(pair): factor for pair, factor in pairs.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "moves", found.moves)
        patch.setattr(search, "replay", found.replay)
        state = found.search(candidates)
    assert len(found.judged) == len(set(found.judged)) <= candidates
    shown, best = choose(state.steps), state.best
    singles = [step.score for step in state.steps if "+" not in step.candidate.id and step.score is not None]
    assert (shown is None) == (best is None)
    if shown is None or best is None or shown.score is None or best.score is None:
        return
    assert shown.score * WORTH >= max(singles, default=0.0)
    assert shown.score * WORTH >= best.score
    if len(found.judged) < candidates:  # it ended by itself: no rule can go without a loss
        labels = shown.candidate.id.split("+")
        for at in range(len(labels)) if len(labels) > 1 else ():
            less = found.score(made("+".join(labels[:at] + labels[at + 1 :])))
            assert less is None or less * WORTH <= best.score * (1 + 1e-9)


@pytest.mark.parametrize(("gain", "kept"), [(1.0, "a"), (1.009, "a"), (1.011, "a+b"), (2.0, "a+b")])
def test_a_rule_must_give_one_per_cent(gain: float, kept: str) -> None:
    steps = [Step(made("a"), None, 3.0), Step(made("a+b", "a"), None, 3.0 * gain)]
    found = choose(steps)
    assert found is not None
    assert found.candidate.id == kept


def test_of_equals_the_one_with_fewer_lines() -> None:
    texts = {"long": "x\ny\nz\n", "short": "x\n"}
    steps = [Step(Candidate("k", "", text, (), "rule:r", id=name), None, 2.0) for name, text in texts.items()]
    found = choose(steps)
    assert found is not None
    assert found.candidate.id == "short"


def test_the_best_of_a_state() -> None:
    empty = State(lambda base: cast(Any, None), Budget())
    assert empty.best is None
    assert choose(empty.steps) is None
    empty.steps += [Step(made("a"), None, 1.0), Step(made("b"), None, None), Step(made("c"), None, 2.0)]
    assert empty.best is not None
    assert empty.best.candidate.id == "c"


def test_a_budget_counts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("cuda_agent.agent.budget.time.monotonic", lambda: now)
    budget = Budget(10.0, 4, started=now)
    assert (budget.left, budget.share, budget.exhausted) == (10.0, 0.0, False)
    budget.tried = 3
    assert budget.share == 0.75
    now = 109.0
    assert (budget.left, budget.share, budget.exhausted) == (1.0, 0.9, False)
    now = 111.0
    assert (budget.left, budget.share, budget.exhausted) == (0.0, 1.0, True)


def test_what_tuning_starts_from_is_compiled_ahead() -> None:
    text = """__global__ void k(const float *a, float *b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float s = 0; for (int j = 0; j < 64; j++) s += a[j * n + i] * 2.0; b[i] = s; }
}
void go(float *a, float *b, int n) { k<<<(n + 127) / 128, 128>>>(a, b, n); }
"""
    original = Context.make(Path("k.cu"), text, "k", original=text)
    policy = search.Search()
    first = next(made for move, made in policy._of(original) if move.rule == "restrict")
    second = next(made for move, made in policy._of(original.behind(first)) if move.rule == "batch-loads")
    assert first.text in [made.text for made in policy.ahead(original.behind(second))]
    assert first.text not in [made.text for made in policy.ahead(original.behind(first))]


def test_a_verdicts_fixed_part_is_learned_on_each_device(tmp_path: Path) -> None:
    device = SimpleNamespace(kind="emulator", identity=("one",))
    store = cache.Cache(tmp_path)
    empty: Any = None
    memory = Memory(device, empty, empty, "", JudgeOptions(), store=lambda: store)  # type: ignore[arg-type]
    memory.keep_fixed_seconds(5.0)
    assert memory.fixed_seconds(12.0) == 12.0  # one says little
    memory.keep_fixed_seconds(0.1)
    assert memory.fixed_seconds(12.0) == pytest.approx(6.0)  # the longest, and a fifth
    for _ in range(6):
        memory.keep_fixed_seconds(0.1)
    assert memory.fixed_seconds(12.0) == pytest.approx(2.4)
    device.identity = ("another",)
    assert memory.fixed_seconds(12.0) == 12.0
    store.close()


def test_a_reserve_is_kept_for_the_full_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("cuda_agent.agent.budget.time.monotonic", lambda: now)
    budget = Budget(100.0, 4, started=now, reserve=30.0)
    assert (budget.left, budget.to_try) == (100.0, 70.0)
    now = 171.0
    assert budget.exhausted
    assert budget.left == 29.0
    budget.reserve = 80.0  # at most half is kept
    now = 140.0
    assert budget.to_try == 10.0


def test_a_trajectory_on_a_full_disk_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    from pathlib import Path

    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    trajectory = Trajectory([full])
    trajectory.append("start", kernel="k")
    assert trajectory.files == ()
    assert "No space left" in caplog.text
    trajectory.append("end")


FILTER = """
__device__ void smooth(float *c, int count)
{
    float last = *c;
    for (int n = 1; n < count; n++) {
        c++;
        *c = last = 0.5f * *c + 0.5f * last;
    }
}

__global__ void rows(float *x, int rows, int cols)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows)
        smooth(x + row * cols, cols);
}
"""


def test_what_only_opens_the_way_is_tried_with_what_follows() -> None:
    def context_of(base: Candidate | None) -> Context:
        text = base.text if base is not None else FILTER
        return Context.make(Path("a.cu"), text, "rows", original=FILTER, base=base)

    policy = search.Search()
    state = State(context_of, Budget())
    first = [one.origin for one in policy.propose(state)]
    walk = next(origin for origin in first if "batch-walk" in origin)
    assert walk.startswith("rule:inline(function=smooth)+batch-walk(")
    assert not any(origin.endswith("inline(function=smooth)") for origin in first)
