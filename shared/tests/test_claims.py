import pytest

from neurips26.shared.claims import Claim, Criterion, Measurement, Series, judge


def claim(criterion, name="c", **more):
    fields = dict(statement="s", paper_value="none", scope="scaled down", metric="m", unit="1", direction="lower")
    return Claim(id=name, criterion=criterion, **{**fields, **more})


def measured(ours, base=None):
    baselines = {} if base is None else {"base": Series({}, base)}
    return Measurement(ours=Series({}, ours), baselines=baselines, seeds=list(range(len(ours))))


RATIO = Criterion(kind="ratio", at_most=0.75)


def test_ratio_is_the_geometric_mean_over_pairs():
    [v] = judge([claim(RATIO)], [measured([1, 2, 4, 8, 16], [2, 4, 8, 16, 32])])
    assert v.effect == pytest.approx(0.5)
    assert v.outcome == "holds"


def test_the_whole_interval_decides():
    noisy = measured([0.7, 0.8, 0.6, 0.9, 0.75], [1.0] * 5)
    above = measured([0.9, 0.91, 0.92, 0.9, 0.91], [1.0] * 5)
    below = measured([0.5, 0.51, 0.5, 0.52, 0.5], [1.0] * 5)
    outcomes = [judge([claim(RATIO)], [m])[0].outcome for m in (noisy, above, below)]
    assert outcomes == ["undecided", "does not hold", "holds"]


def test_fewer_than_five_seeds_never_decide():
    [v] = judge([claim(RATIO)], [measured([0.1] * 4, [1.0] * 4)])
    assert v.outcome == "undecided" and "5" in v.why


def test_deterministic_values_use_their_range_and_need_no_seeds():
    c = claim(Criterion(kind="bound", at_most=10, deterministic=True))
    assert judge([c], [measured([9.0])])[0].outcome == "holds"
    assert judge([c], [measured([9.0, 11.0])])[0].outcome == "undecided"


def test_a_missing_machine_is_not_a_failure():
    [v] = judge([claim(RATIO, needs=("gpu",))], [None])
    assert v.outcome == "not testable here" and v.why == "no GPU" and v.effect is None


def test_holm_widens_the_interval_of_a_family():
    m = measured([0.70, 0.74, 0.72, 0.73, 0.71], [1.0] * 5)
    alone = judge([claim(RATIO)], [m])[0]
    many = judge([claim(RATIO, f"c{i}") for i in range(6)], [m] * 6)
    assert many[0].interval[1] > alone.interval[1]
    assert many[0].level == pytest.approx(1 - 0.05 / 6)


def slope(cells, level):
    value = sum(c["value"] for c in cells)
    return value, value - (1 - level), value + (1 - level)


def test_effect_functions_take_the_cells():
    c = claim(Criterion(kind="slope", at_least=1.0, effect=f"{__name__}:slope", deterministic=True))
    import sys

    sys.modules.setdefault(__name__, sys.modules[slope.__module__])
    m = Measurement(cells=[{"factors": {}, "seed": s, "method": "a", "value": 0.5} for s in range(5)])
    assert judge([c], [m])[0].effect == pytest.approx(2.5)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Criterion(kind="ratio"), "at_least"),
        (lambda: Criterion(kind="equal"), "tolerance"),
        (lambda: Criterion(kind="slope", at_least=1), "effect"),
        (lambda: Criterion(kind="ratios", at_least=1), "did you mean 'ratio'"),
        (lambda: claim(RATIO, scope="small"), "scope"),
        (lambda: Series({}, [float("nan")]), "finite"),
        (lambda: judge([claim(RATIO)], [measured([1.0], [0.0])]), "positive"),
        (lambda: judge([claim(RATIO)], [measured([1.0, 1.0], [1.0])]), "paired"),
        (lambda: judge([claim(RATIO)], [measured([1.0])]), "compared_to"),
    ],
)
def test_bad_claims_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_json_round_trip():
    c = claim(Criterion(kind="equal", tolerance=0.0, deterministic=True), needs=("gpu",))
    assert Claim.from_json(c.to_json()) == c
    m = measured([1.0, 2.0], [1.0, 2.0])
    assert Measurement.from_json(m.to_json()) == m
