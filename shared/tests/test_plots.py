from neurips26.shared import plots


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    for name in ("a.png", "b.png"):
        with plots.figure(tmp_path / name, 1, 2) as axes:
            axes[0].plot([1, 2], [3, 4], label="ours")
            axes[1].bar(["a"], [1.0])
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
