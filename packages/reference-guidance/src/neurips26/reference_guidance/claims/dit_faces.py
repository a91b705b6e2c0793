"""Control of a small diffusion transformer over 32x32 faces: colour, style, structure."""

from __future__ import annotations

from neurips26.reference_guidance import pictures
from neurips26.reference_guidance.claims.common import (
    FACES,
    NO_TABLE,
    SLUG,
    control_row,
    fresh_seeds,
    note_judge,
    once,
    seed_rows,
)
from neurips26.shared import data
from neurips26.shared.claims import Claim, Criterion, Measurement, measures
from neurips26.shared.context import Context

#: Sets and noises of an attribute: sets differ in how well they show a style.
SEEDS = {"tint": 10, "style": 30, "layout": 10}


def _claim(id: str, what: str, at_least: float) -> Claim:
    return Claim(
        id, f"Twenty references that share {what} and mix all else give a frozen DiT over 32x32 faces that attribute",
        NO_TABLE, "scaled down", "share of samples with the attribute", "1", "higher",
        Criterion("bound", at_least=at_least),
    )  # fmt: skip


def _row(ctx: Context, name: str) -> Measurement:
    from neurips26.reference_guidance import dit_faces  # a quick run is spared the import of the transformer

    path = data.require(SLUG, "olivetti_faces_64.npz")
    note_judge(ctx, dit_faces.faces_and_judges(path, dit_faces.SIDE)[2][name].accuracy)
    seeds = fresh_seeds(ctx, SEEDS[name])
    ctx.note(
        "one frozen flow of one seed; a seed draws the set and the noise, so the interval says nothing of other flows"
    )
    ctx.note("settings of the rivals are those chosen on 16x16 faces and their flow")
    rows = seed_rows(ctx, seeds, lambda s: once(dit_faces.dit_control, path, seeds[0], s, name))
    return control_row(rows, "quadratic 2", FACES, name)


@measures(_claim("faces-dit-colour", "a colour (red)", 0.95), tiers=("cpu",))
def faces_dit_colour(ctx: Context) -> Measurement:
    """Tint; base rate 1/3."""
    m = _row(ctx, "tint")
    path = ctx.figure("faces-dit-contact-sheet.png")
    pictures.dit_face_sheet(path, data.require(SLUG, "olivetti_faces_64.npz"), m.seeds[0])
    m.figures = [path]
    return m


@measures(_claim("faces-dit-style", "a style (sketch)", 0.8), tiers=("cpu",))
def faces_dit_style(ctx: Context) -> Measurement:
    """Style; base rate 1/3."""
    return _row(ctx, "style")


@measures(_claim("faces-dit-structure", "a layout (left half)", 0.9), tiers=("cpu",))
def faces_dit_structure(ctx: Context) -> Measurement:
    """Layout; base rate 1/3."""
    return _row(ctx, "layout")
