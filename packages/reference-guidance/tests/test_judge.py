import torch

from neurips26.reference_guidance.bridge import euler_sample
from neurips26.reference_guidance.conv_judge import ConvJudge, augmented
from neurips26.reference_guidance.metrics import frechet_distance
from neurips26.reference_guidance.posterior import reference_mean
from neurips26.reference_guidance.toys import moons


def stripes(n, seed):
    """Upright (1) and level (0) stripes of random phase, in noise."""
    g = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % 2
    wave = torch.sin(torch.arange(8) * 1.6 + 6.3 * torch.rand(n, 1, generator=g))
    upright = wave[:, None, None, :].expand(n, 3, 8, 8)
    images = torch.where(label[:, None, None, None] == 1, upright, upright.mT)
    return images + 0.3 * torch.randn(images.shape, generator=g), label


def test_the_convolutional_judge_learns_what_it_is_shown_and_says_so():
    train, test = stripes(256, 0), stripes(200, 1)
    judge = ConvJudge(train, test, epochs=6, width=8)
    assert judge.accuracy > 0.95
    assert judge.rate(test[0][test[1] == 1], 1) + judge.rate(test[0][test[1] == 0], 0) == 2 * judge.accuracy
    assert torch.equal(judge.predict(test[0]), ConvJudge(train, test, epochs=6, width=8).predict(test[0]))
    # in its features stripes of one kind are nearer to each other than to those of the other
    level, upright = (test[0][test[1] == kind] for kind in (0, 1))
    same = frechet_distance(level, train[0][train[1] == 0], judge.body)
    assert frechet_distance(level, upright, judge.body) > 5 * same


def test_augmentation_keeps_shape_and_labels_apart():
    x = stripes(64, 2)[0]
    moved = augmented(x, torch.Generator().manual_seed(0))
    assert moved.shape == x.shape and torch.isfinite(moved).all() and (moved - x).abs().mean() > 0.1


def test_the_flow_of_a_set_ends_on_its_points():
    refs = moons(60, 0).images[:20]
    noise = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))
    x = euler_sample(lambda x, t: reference_mean(x, refs, float(t[0]))[0], noise, 30)
    assert torch.cdist(x, refs).min(1).values.max() < 0.05  # a thousandth of the way is left
