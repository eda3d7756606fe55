"""Takes docs/images/frontier.png, a screenshot of a frontier page, with headless Chromium.

Run it with the package, its extra [demo] and Chromium installed; it takes a few minutes on one core.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

import partialfusion as pf
from partialfusion import demo as digits

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "tradeoff"))

from browser import browsing  # noqa: E402

METHODS = {"partial-ot": {}, "refitted": {"refit": True}, "cluster": {"method": pf.Cluster(workers=1)}}


def frontier() -> pf.Frontier:
    """The demo's pair, scored on the first half of the test images."""
    torch.set_num_threads(1)
    pair = digits.specialists()
    half = len(pair.test) // 2
    return pf.frontier(
        [pair.a, pair.b],
        pair.data_b.images[:64],
        evaluate=[(pair.test.images[:half], pair.test.digits[:half])],
        methods=METHODS,
        mixes=[0.3, 0.5, 0.7],
        data=[torch.cat([pair.data_a.images, pair.data_b.images])[:1000]],
        latency=True,
    )


def main() -> None:
    found = frontier()
    print(found)
    with tempfile.TemporaryDirectory() as folder, browsing() as tab:
        page = found.save_html(Path(folder) / "page.html", title="Two specialists on handwritten digits")
        tab.show(1180, 990)
        tab.open(page)
        assert not tab.complaints, tab.complaints
        (ROOT / "docs" / "images" / "frontier.png").write_bytes(tab.screenshot())


if __name__ == "__main__":
    main()
