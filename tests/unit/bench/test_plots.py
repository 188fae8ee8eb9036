"""A run's pictures and record: well formed, and with everything in them."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

from bench.limits import Limit, Machine, Pass
from bench.plots import Bar, bars, roofline
from bench.report import Sample
from bench.results import Run, shares, write
from bench.traffic import Traffic, traffic_of

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = Machine(
    "avx2",
    (Limit(1, 20, 80, 200, 50), Limit(2, 40, 130, 400, 100)),
    (Pass(1, 60e6, 100e6, 0.0025), Pass(512, 60e6, 51.2e9, 0.2)),
)


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{SVG}text")]


def test_bars_name_every_ratio_and_end_within_the_picture() -> None:
    drawn = bars("a < b", [Bar("one", 2.0, 1.5, 2.5, "llama.cpp"), Bar("two", 0.5, 0.5, 0.5, "x")])
    assert {"a < b", "one", "two", "2.00 llama.cpp", "0.50 x"} <= set(texts(drawn))
    root = ET.fromstring(drawn)
    widths = [float(box.get("width", "0")) for box in root.iter(f"{SVG}rect")][1:]
    assert widths[0] == 4 * widths[1]
    assert all(float(line.get("x2", "0")) <= 900 for line in root.iter(f"{SVG}line"))


def test_a_roofline_has_its_roofs_and_a_point_for_each_pass() -> None:
    drawn = roofline(MACHINE)
    assert {"DRAM 40 GB/s", "L3 130 GB/s", "int8 400 GMAC/s", "f32 100 GMAC/s"} <= set(texts(drawn))
    assert {"1 row", "512 rows"} <= set(texts(drawn))
    assert len(list(ET.fromstring(drawn).iter(f"{SVG}circle"))) == 2


def test_shares_are_of_the_limits_of_all_threads() -> None:
    traffic = Traffic(110_000_000, 95_392_000, 100_000_000, 30_000_000, 24_000)
    samples = (Sample("roost", 0, "single", 200.0), Sample("roost", 0, "prefill512", 2_000.0))
    single, prefill = shares(Run("m", (), samples, MACHINE, traffic))
    assert "100.0 MB a token" in single
    assert "20.0 GB/s, 50% of what DRAM gives" in single
    assert "200 GMAC/s, 50% of the int8 limit" in prefill


def test_a_record_names_the_machine_and_no_path(tmp_path: Path) -> None:
    samples = (Sample("roost", 0, "single", 2.0), Sample("peer", 0, "single", 1.0))
    written = write(Run("tiny", ("peer",), samples, MACHINE, None), tmp_path)
    assert [path.name.split("-tiny")[1] for path in written] == [
        ".json",
        "-ratios.svg",
        "-roofline.svg",
    ]
    record = json.loads(written[0].read_text())
    assert record["ratios"]["single"]["median"] == 2
    assert record["medians"] == {"roost": {"single": 2.0}, "peer": {"single": 1.0}}
    assert record["usable_cores"] >= 1
    assert str(Path.home()) not in written[0].read_text()


def test_a_token_of_the_demo_model_moves_its_packed_weights_once(demo_model: Path) -> None:
    traffic = traffic_of(demo_model)
    # 30 layers of 960, 576 and 3,072 rows of 576, and 576 of 1,536; a head of 49,152 rows of 576.
    assert traffic.layer_macs == 30 * (960 * 576 + 576 * 576 + 3072 * 576 + 576 * 1536)
    assert traffic.head_macs == 49_152 * 576
    assert traffic.kv_bytes_per_token == 30 * 2 * 3 * 64 * 2
    # Q4_1 is 5 bits a weight, the head's Q8_0 is 8.5.
    assert traffic.weight_bytes == traffic.layer_macs * 5 // 8 + traffic.head_macs * 17 // 16
    assert traffic.decode_bytes(100) == traffic.weight_bytes + 2_304_000
