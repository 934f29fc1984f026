"""What is stored beside a plan for people: read back as it was, and never more than text."""

from fusionplan.planner.origin import LONGEST, MOST_LINES, Origin, without_sources

ORIGIN = Origin("inference", "float32[4]", {2: "m.py:3: x + b", 3: "m.py:3: x + b", 7: "m.py:4: y"})


def test_it_is_read_back():
    data = ORIGIN.to_json()
    assert data["sources"] == [["m.py:3: x + b", [2, 3]], ["m.py:4: y", [7]]]
    assert Origin.of({"about": data}) == ORIGIN
    assert "sources" not in Origin("inference").to_json()


def test_what_is_of_another_form_is_left_out():
    assert Origin.of({}) == Origin()
    assert Origin.of({"about": ["x"]}) == Origin()
    sources = [["a.py:1: x", [1, "2", None]], ["b"], 7, [8, [9]], None, ["c", 4]]
    found = Origin.of({"about": {"stage": None, "inputs": 3, "sources": sources}})
    assert found == Origin("", "3", {1: "a.py:1: x"})


def test_a_long_text_is_cut():
    many = Origin(sources={n: f"{n:05}" + "x" * 1000 for n in range(MOST_LINES + 9)})
    kept = many.to_json()["sources"]
    assert (len(kept), len(kept[0][0])) == (MOST_LINES, LONGEST)


def test_what_is_given_to_others_has_no_source():
    payload = {"groups": [], "about": ORIGIN.to_json()}
    assert Origin.of(without_sources(payload)) == Origin("inference", "float32[4]")
    assert without_sources({"groups": []}) == {"groups": []}
    assert "sources" in payload["about"]
