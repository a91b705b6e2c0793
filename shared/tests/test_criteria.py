"""Criteria read from source texts: a change of a bar is seen, wherever it stands; a change of words is not."""

import pytest

from neurips26.shared.criteria import criteria, criterion_of

SOURCE = """
from neurips26.shared import claims
from neurips26.shared.claims import Claim, Criterion, measures

@measures(Claim(id="plain", statement="s", criterion=Criterion("ratio", at_most=0.9)))
def a(ctx): ...

@measures(Claim("placed", "s", "none", claims.Criterion("bound", at_least=1.0)), tiers=("cpu",))
def b(ctx): ...

def made(id, what, at_least):
    return Claim(id, f"{what} is enough", "none", Criterion("bound", at_least=at_least))

@measures(made("from-a-maker", "much", 0.5))
def c(ctx): ...

for size in (1, 2):
    measures(Claim(id=f"size-{size}", statement="s", criterion=Criterion("bound", at_most=3.0)))
"""
IDS = ("plain", "placed", "from-a-maker", "size-1", "size-2")


def test_every_claim_has_its_criterion_and_a_stranger_none():
    found = criteria([SOURCE])
    assert all(len(criterion_of(claim, found)) == 1 for claim in IDS)
    assert criterion_of("size", found) == criterion_of("plai", found) == set()
    assert len({next(iter(criterion_of(claim, found))) for claim in IDS}) == 4


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("at_most=0.9", "at_most=0.95", {"plain"}),
        ('"bound", at_least=1.0', '"bound", at_least=0.9', {"placed"}),
        ('"much", 0.5', '"much", 0.4', {"from-a-maker"}),
        ("at_least=at_least)", "at_least=at_least / 2)", {"from-a-maker"}),
        ("at_most=3.0", "at_most=4.0", {"size-1", "size-2"}),
        ('statement="s"', 'statement="better"', set()),
        ('"much"', '"a lot"', set()),
        ('id="plain"', 'id="renamed"', {"plain"}),
    ],
)
def test_what_a_change_reaches(old, new, changed):
    before, after = criteria([SOURCE]), criteria([SOURCE.replace(old, new)])
    assert {claim for claim in IDS if criterion_of(claim, before) != criterion_of(claim, after)} == changed


def test_claims_may_be_spread_over_files():
    first, second = SOURCE.split("def made")
    assert criteria([first, "def made" + second]) == criteria([SOURCE])
