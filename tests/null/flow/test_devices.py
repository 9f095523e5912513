"""Devices and families: described by data, asked by family."""

import itertools

import pytest

from flexsdpa.eligibility import FieldCase
from flexsdpa.errors import RequestError
from flexsdpa.oracle.records import load_all
from flexsdpa.spec import families
from flexsdpa.spec.device import ASSUMED_CUDNN, ASSUMED_FRONTEND, CPU, Device
from flexsdpa.spec.families import FAMILIES, family_of
from flexsdpa.testing.fake_devices import CARDS, DEVICES, cards_of

LIBRARIES = (("cudnn", ASSUMED_CUDNN), ("cudnn-frontend", ASSUMED_FRONTEND))


class TestFamilies:
    @pytest.mark.parametrize(
        ("capability", "name"),
        [
            ((7, 0), "sm_7x"), ((7, 5), "sm_7x"), ((8, 0), "sm_8x"), ((8, 6), "sm_8x"), ((8, 9), "sm_8x"), ((9, 0), "sm_9x"),
            ((10, 0), "sm_10x"), ((10, 3), "sm_10x"), ((11, 0), "sm_11x"), ((12, 0), "sm_12x"), ((12, 1), "sm_12x"),
        ],
    )  # fmt: skip
    def test_a_capability_belongs_to_a_family(self, capability, name):
        assert family_of(capability).name == name

    @pytest.mark.parametrize("capability", [(6, 1), (13, 0), (99, 9)])
    def test_a_capability_that_no_row_covers_has_none(self, capability):
        assert family_of(capability) is None
        assert Device("cuda", 0, "", "", capability).family is None

    def test_families_do_not_overlap(self):
        rows = sorted(FAMILIES, key=lambda family: family.low)
        assert all(one.high < two.low for one, two in itertools.pairwise(rows))
        assert all(family.low <= family.high for family in rows)

    def test_a_later_card_of_a_known_family_is_served(self):
        """Rules ask the family, so a minor number that nobody has seen yet is no reason to refuse."""
        assert family_of((12, 7)) is family_of((12, 0))

    def test_every_card_of_the_table_belongs_to_a_family(self):
        assert all(family_of(divmod(card.number, 10)) is not None for card in families.CARDS)
        assert len({card.number for card in families.CARDS}) == len(families.CARDS)
        assert {card.number for card in families.CARDS} >= {80, 86, 87, 89, 90, 100, 103, 110, 120, 121}

    def test_an_unknown_minor_joins_its_family_with_a_note(self):
        assert families.note_on((12, 1)) == families.note_on((7, 5)) == ""
        assert families.note_on((12, 7)) == (
            "sm_127 is not a known card; it is judged as its family, sm_12x (RTX 50, RTX PRO 6000, GB10)"
        )

    def test_an_unknown_family_is_noted(self):
        assert families.note_on((13, 0)).startswith("compute capability 13.0 belongs to no known family (sm_7x, ")


class TestDescribedDevices:
    def test_a_card_that_nobody_owns(self):
        device = Device.describe((12, 1), cudnn="9.28.1", index=3)
        assert (device.name, device.index, str(device)) == ("NVIDIA GB10", 3, "cuda:3 sm_121")
        assert device.library("cudnn") == "9.28.1"
        assert device.library("cudnn-frontend") == ASSUMED_FRONTEND
        assert device.note == ""

    def test_it_is_what_parse_gives(self):
        assert Device.parse("sm_90", "9.23.2") == Device.describe((9, 0), cudnn="9.23.2")

    def test_a_card_without_a_name_is_called_by_its_number(self):
        assert Device.describe((12, 5)).name == "sm_125"
        assert "judged as its family" in Device.describe((12, 5)).note
        assert Device("cpu").note == ""

    @pytest.mark.parametrize("name", ["cudnn", "frontend"])
    def test_versions_are_parsed_strictly(self, name):
        with pytest.raises(RequestError, match=f"{name}: expected three numbers with points, got '9.28'"):
            Device.describe((9, 0), **{name: "9.28"})


class TestDevices:
    @pytest.mark.parametrize(
        ("text", "device"),
        [
            ("cpu", Device("cpu")),
            ("cuda", Device("cuda", 0)),
            ("cuda:1", Device("cuda", 1)),
            ("sm_90", Device("cuda", 0, "described-sm_90", "NVIDIA H200", (9, 0), LIBRARIES)),
            ("sm121", Device("cuda", 0, "described-sm_121", "NVIDIA GB10", (12, 1), LIBRARIES)),
        ],
    )
    def test_a_device_is_described_in_words(self, text, device):
        assert Device.parse(text) == device

    @pytest.mark.parametrize("text", ["", "cuda:", "cuda:x", "CPU", "sm_x", "gpu 0", "sm_9000"])
    def test_other_words_are_refused(self, text):
        with pytest.raises(RequestError) as raised:
            Device.parse(text)
        assert str(raised.value) == f"unknown device {text!r}: expected cpu, cuda:0 or a capability such as sm_90"
        assert (raised.value.field, raised.value.got) == ("device", text)

    @pytest.mark.parametrize(
        ("device", "text"),
        [(CPU, "cpu"), (Device("cuda", 1, "", "", (9, 0)), "cuda:1 sm_90"), (Device("cuda", 0, "", "", (12, 1)), "cuda:0 sm_121"),
         (Device("cuda", 2), "cuda:2")],
    )  # fmt: skip
    def test_a_device_prints_as_people_call_it(self, device, text):
        assert str(device) == text


class TestFakeDevices:
    def test_no_two_are_alike(self):
        assert len(set(DEVICES)) == len(DEVICES)
        assert len({card.uuid for card in CARDS}) == len(CARDS)

    def test_cards_are_found_by_family(self):
        assert {card.capability for card in cards_of("sm_12x")} == {(12, 0), (12, 1)}
        assert cards_of("sm_3x") == ()


def test_a_minor_beyond_9_is_no_capability():
    with pytest.raises(RequestError, match=r"capability: expected a pair such as \(12, 1\), got \(9, 10\)"):
        Device.describe((9, 10))


@pytest.mark.parametrize("capability", ["sm_121", "12.1", 12.1, (12,), (12, 1, 0), [12, 1], (-1, 0), (12.0, 1)])
def test_what_is_no_pair_is_no_capability(capability):
    with pytest.raises(RequestError, match="capability: expected a pair such as"):
        Device.describe(capability)


def test_versions_are_text():
    with pytest.raises(RequestError, match="cudnn: expected three numbers with points, got 91900"):
        Device.describe((9, 0), cudnn=91900)
    with pytest.raises(RequestError, match="device: expected text such as sm_90, got 121"):
        Device.parse(121)


@pytest.mark.parametrize("text", ["sm_121", "SM_121", "sm121", "sm_121a", "121", "12.1", " 12.1 "])
def test_one_card_however_it_is_written(text):
    assert families.capability_of(text) == (12, 1)
    assert Device.parse(text) == Device.describe((12, 1))
    assert FieldCase.of(cc=text).cc == (12, 1)


@pytest.mark.parametrize("text", ["", "12", "sm_", "12.10", "1.2.1", "h200", "sm_1211", "0.9"])
def test_what_is_no_card(text):
    assert families.capability_of(text) in (None, (1, 2))


def test_rules_and_cases_assume_one_cudnn():
    assert ".".join(map(str, FieldCase.of().cudnn)) == ASSUMED_CUDNN == load_all()[-1].cudnn
