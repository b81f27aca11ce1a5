"""The pipeline of the guide does what the guide says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tailrace.config import load
from tailrace.spark.pipelines.definition import definitions
from tests.project import ROOT
from tests.spark.pipelines.support import Place


@pytest.mark.spark("4.2")  # a window ends with the second batch of a run
def test_the_first_example(spark: Any, place: Place) -> None:
    text = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
    example = re.findall(r"(?ms)^```yaml\n(.*?)^```", text)[0]
    (place.folder / "tailrace.yaml").write_text(example)
    [definition] = definitions(load(place.folder / "tailrace.yaml")).values()
    orders = [("cup", 2.5, "12:10"), ("cup", 2.0, "12:50"), ("plate", 4.0, "12:30"),
              ("cup", 1.0, "14:00")]  # fmt: skip
    for item, amount, at in orders:
        order = {"item": item, "amount": amount, "at": f"2026-01-31T{at}:00Z"}
        place.publish("orders", order)
    place.publish("orders", b'{"id": "x"}')
    place.run(spark, definition)
    found = {message.key: json.loads(message.value or b"") for message in place.messages("revenue")}
    until = "2026-01-31T13:00:00.000Z"
    assert found == {
        b"cup": {"until": until, "revenue": 4.5},
        b"plate": {"until": until, "revenue": 4.0},
    }
    assert place.reasons("orders") == {b'{"id": "x"}': "the field 'id' is no bigint: 'x'"}
