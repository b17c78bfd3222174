"""What steers a terminal is written out, and all other text stays as it is."""

import unicodedata

import pytest

from autogp.printing import escaped


def test_controls_and_marks_of_direction_are_written_out() -> None:
    controls = [chr(code) for code in range(0xA0) if unicodedata.category(chr(code)) == "Cc"]
    marks = [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)]
    for character in {*controls, *marks} - {"\n", "\t"}:
        assert escaped(f"a{character}b") == f"a{character!r}b".replace("'", "")


def test_undecodable_bytes_of_a_file_name_can_be_printed() -> None:
    assert escaped(b"data\xff.csv".decode(errors="surrogateescape")).encode() == rb"data\udcff.csv"


@pytest.mark.parametrize("text", ["Größe", "年齢\u3000歳", "می\u200cخواهم", "👩\u200d🔬", "two\nlines\t\\x1b"])
def test_text_of_any_language_stays(text: str) -> None:
    assert escaped(text) == text
