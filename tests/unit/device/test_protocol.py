from __future__ import annotations

import io
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.device import protocol
from cuda_agent.device.info import GPUS, DeviceInfo, bandwidth_of
from cuda_agent.device.jobs import Job, blob_names, module_blobs
from cuda_agent.device.quarantine import Memory, Quarantine


def exchange(*frames: tuple[dict, bytes]) -> io.BytesIO:
    stream = io.BytesIO()
    for header, payload in frames:
        protocol.write_frame(stream, header, payload)
    stream.seek(0)
    return stream


@given(st.lists(st.tuples(st.dictionaries(st.text(), st.integers()), st.binary()), max_size=4))
def test_frames_come_back(frames: list[tuple[dict, bytes]]) -> None:
    sent = [({**header, "type": "x"}, payload) for header, payload in frames]
    stream = exchange(*sent)
    assert [protocol.read_frame(stream) for _ in sent] == sent
    with pytest.raises(protocol.StreamClosed):
        protocol.read_frame(stream)


def test_numbers_that_json_lacks() -> None:
    header, _ = protocol.read_frame(exchange(({"type": "x", "v": [math.inf, math.nan]}, b"")))
    assert header["v"][0] == math.inf
    assert math.isnan(header["v"][1])


def test_a_cut_stream_is_closed_and_a_wrong_one_torn() -> None:
    whole = exchange(({"type": "x"}, b"payload")).getvalue()
    for cut in (1, 15, 17, len(whole) - 1):
        with pytest.raises(protocol.StreamClosed):
            protocol.read_frame(io.BytesIO(whole[:cut]))
    with pytest.raises(protocol.TornStream):
        protocol.read_frame(io.BytesIO(b"hello from printf, this is no frame"))


def test_pipes_that_write_and_read_in_parts() -> None:
    import threading

    read, write = os.pipe()
    payload = bytes(range(256)) * 20000
    with os.fdopen(read, "rb", buffering=0) as reader, os.fdopen(write, "wb", buffering=0) as writer:
        thread = threading.Thread(target=protocol.write_frame, args=(writer, {"type": "put"}, payload))
        thread.start()
        assert protocol.read_frame(reader) == ({"type": "put"}, payload)
        thread.join()


def test_a_reader_that_is_gone() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb", buffering=0) as writer, pytest.raises(protocol.StreamClosed):
        protocol.write_frame(writer, {"type": "x"})


def test_quarantine_by_fault_and_by_deadline() -> None:
    store = Memory()
    quarantine = Quarantine(store)
    assert quarantine.why("a", 1) is None
    quarantine.add("a", "late", deadline_s=2.0)
    assert quarantine.why("a", 2.0) is not None
    assert quarantine.why("a", 3.0) is None
    quarantine.add("a", "later", deadline_s=5.0)
    quarantine.add("a", "late", deadline_s=1.0)
    assert quarantine.why("a", 3.0).reason == "later"  # type: ignore[union-attr]
    quarantine.add("a", "faulted")
    quarantine.add("a", "late", deadline_s=9.0)
    assert Quarantine(store).why("a", 1e9).reason == "faulted"  # type: ignore[union-attr]
    quarantine.forget("a")
    assert quarantine.why("a", 1) is None


def test_names_in_steps() -> None:
    steps = [
        {"op": "load", "module": "m", "blob": "1"},
        {"op": "launch", "buffers": [{"init": {"blobs": ["2", "3"]}}], "globals": [["s", {"blobs": ["2", "4"]}]]},
        {"op": "time", "a": {"buffers": [{"init": {"blobs": ["5"]}}]}},
    ]
    assert blob_names(steps) == ["1", "2", "3", "4", "5"]
    assert module_blobs(steps) == {"m": "1"}
    assert Job(steps).deadline_s > 0


def test_device_info() -> None:
    h200 = GPUS["h200"]
    assert DeviceInfo.from_json({**h200.to_json(), "from_a_newer_worker": 1}) == h200
    assert h200.peak_flops("f32") == pytest.approx(66.9e12, rel=0.01)  # data sheet: 67 TFLOP/s
    assert h200.peak_flops("f64") == pytest.approx(33.5e12, rel=0.01)  # data sheet: 34 TFLOP/s
    assert bandwidth_of("any", 2619000, 5120) == pytest.approx(3352, rel=0.001)
    assert bandwidth_of("NVIDIA H200", 0, 6144) == 4800.0
    assert bandwidth_of("NVIDIA GeForce RTX 4090", 0, 0) == 1008.0
    assert bandwidth_of("a GPU of tomorrow", 0, 0) == 0.0
