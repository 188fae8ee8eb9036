"""A benchmark's arithmetic: percentiles, ratios with their spread, which peer is the best."""

from bench.load import SCENARIOS, percentile, prompts
from bench.memory import tree
from bench.report import ROWS, Row, Sample, median, ratio_of, table
from bench.serve import Launch, launches

SPEED = Row("single", "one stream, tok/s", more_is_better=True)
TIME = Row("start", "start, s", more_is_better=False, digits=2)


def samples(label: str, row: str, *values: float) -> list[Sample]:
    return [Sample(label, number, row, value) for number, value in enumerate(values)]


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(i) for i in range(1, 101)]
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile([7.0], 99) == 7
    assert percentile([], 99) == 0


def test_ratios_are_those_of_a_round_and_to_the_best_peer() -> None:
    found = [
        *samples("roost", "single", 30, 10, 40),
        *samples("fast", "single", 10, 5, 20),
        *samples("slow", "single", 9, 99, 1),
    ]
    ratio = ratio_of(found, SPEED, ["slow", "fast"])
    assert ratio is not None
    assert (ratio.peer, ratio.median, ratio.least, ratio.most, ratio.rounds) == ("fast", 3, 2, 3, 3)


def test_a_shorter_time_is_a_ratio_above_one() -> None:
    found = [*samples("roost", "start", 0.5, 0.25), *samples("peer", "start", 1.0, 1.0)]
    ratio = ratio_of(found, TIME, ["peer"])
    assert ratio is not None
    assert (ratio.least, ratio.most) == (2, 4)


def test_the_median_of_a_peer_stands_in_for_rounds_it_did_not_play() -> None:
    found = [*samples("roost", "single", 20, 30), *samples("peer", "single", 10)]
    ratio = ratio_of(found, SPEED, ["peer"])
    assert ratio is not None
    assert (ratio.least, ratio.most) == (2, 3)


def test_several_samples_of_a_round_are_one() -> None:
    found = [Sample("roost", 0, "start", value) for value in (1.0, 3.0, 50.0)]
    assert median([*found, Sample("roost", 1, "start", 5.0)], "roost", "start") == 4


def test_nobody_to_compare_with_is_no_ratio() -> None:
    assert ratio_of(samples("roost", "single", 1), SPEED, ["peer"]) is None
    assert ratio_of(samples("peer", "single", 1), SPEED, ["peer"]) is None


def test_the_table_has_a_line_for_what_was_measured() -> None:
    found = [*samples("roost", "single", 20), *samples("peer", "single", 10)]
    lines = table(found, ["peer"]).splitlines()
    assert len(lines) == 3
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == ["one stream, tok/s", "20", "10", "2.00 (2.00–2.00) peer"]


def test_rows_have_keys_of_their_own() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)


def test_no_two_scenarios_begin_alike_but_the_warm_one() -> None:
    beginnings = {name: prompts(scenario, 0)[0][:8] for name, scenario in SCENARIOS.items()}
    assert beginnings.pop("shared_warm") == beginnings["shared"]
    assert len({tuple(beginning) for beginning in beginnings.values()}) == len(beginnings)
    cold, warm = (prompts(SCENARIOS[name], 0) for name in ("shared", "shared_warm"))
    assert cold[0][:1024] == warm[0][:1024]
    assert not {tuple(p[1024:]) for p in cold} & {tuple(p[1024:]) for p in warm}


def test_launches_are_shared_by_scenarios_of_as_many_slots() -> None:
    kept = launches(list(SCENARIOS), keep=True)
    assert [launch.scenarios for launch in kept] == [
        ("single", "prefill512", "prefill2048", "batch16"),
        ("shared", "shared_warm", "tiny"),
        ("batch64",),
        ("single",),
        ("tiny",),
    ]
    assert [launch.streams for launch in kept] == [16, 32, 64, 1, 32]
    assert launches(["batch16", "shared_warm", "shared"], keep=False) == [
        Launch(("batch16",), is_memory_read=True),
        Launch(("shared", "shared_warm")),
    ]


def test_a_tree_of_processes_is_all_that_descend() -> None:
    assert tree(1, {1: 0, 2: 1, 3: 2, 4: 0, 5: 4}) == {1, 2, 3}
