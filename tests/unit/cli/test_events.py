"""`kubectl tpu events`."""

from __future__ import annotations

from datetime import timedelta

from tests.builders import NOW, UID, job, stamp
from tests.unit.cli.scenes import COLOURED, LATER, PLAIN, event
from tpu_operator.cli.happenings import draw, happening, of_job


def test_events_of_a_job_and_its_pods_in_order() -> None:
    about_job = [
        event("Blocked", "no room", about="TPUJob/train", eventTime=stamp(NOW + timedelta(seconds=9)))
    ]
    about_pods = [
        event("Pulled", "image is there", type="Normal", eventTime=stamp(NOW + timedelta(seconds=5))),
        event("Started", "of another job", about="Pod/train-2-0-1"),
        event("Started", "of another job", about="Pod/other-0-1"),
        event("Started", "the driver", about="Pod/train-head", type="Normal", eventTime=stamp(NOW)),
    ]
    found = of_job(job(), about_job, about_pods)
    assert [one.message for one in found] == ["the driver", "image is there", "no room"]


def test_events_of_an_earlier_job_of_that_name_are_left_out() -> None:
    old = event("Failed", "old", about="TPUJob/train")
    old["regarding"]["uid"] = "another"
    mine = event("Failed", "mine", about="TPUJob/train")
    mine["regarding"]["uid"] = UID
    assert [one.message for one in of_job(job(), [old, mine], [])] == ["mine"]
    born = job().model_copy(
        update={
            "metadata": job().metadata.model_copy(update={"creation_timestamp": NOW + timedelta(minutes=1)})
        }
    )
    assert of_job(born, [], [event("Failed", "before")]) == []


def test_what_writers_leave_out() -> None:
    found = happening({"regarding": None, "eventTime": None, "metadata": {"creationTimestamp": "nonsense"}})
    assert (found.time, found.type, found.about, found.count) == (None, "Normal", "object/", 1)


def test_a_series_has_its_last_time_and_its_count() -> None:
    series = {"count": 7, "lastObservedTime": "2026-11-30T12:04:00.000000Z"}
    found = happening(event("BackOff", "again", series=series))
    assert found.count == 7
    assert draw([found], LATER, PLAIN)[1].startswith("60s  Warning  pod/train-0-1  BackOff  again (x7)")


def test_the_table() -> None:
    assert draw([happening(event("BackOff", "one\ntwo"))], LATER, PLAIN) == [
        "AGE  TYPE     OBJECT         REASON   MESSAGE",
        "5m   Warning  pod/train-0-1  BackOff  one two",
    ]
    assert "\x1b[33mWarning\x1b[0m" in draw([happening(event("BackOff", "x"))], LATER, COLOURED)[1]
    assert draw([], LATER, PLAIN) == ["no events; the API server forgets them after an hour"]
