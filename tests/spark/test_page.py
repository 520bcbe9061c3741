from __future__ import annotations

from html.parser import HTMLParser

from seriatim.spark.page import Bucket, KeyBar, Page, Point, Trail, draw

COUNTS = {"keys": 1, "rows": 3, "duplicates": 0, "conflicts": 0, "lost": 1, "reordered": 1, "invalid": 0}
TOTAL = COUNTS | {"max_displacement": 1, "guarantee": "none"}


class Tags(HTMLParser):
    """The elements of a page, each closed in its turn."""

    VOID = ("meta",)

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def full_page(key: str = "a") -> Page:
    points = (Point(0, 1, "in order"), Point(1, 3, "in order"), Point(2, 2, "overtaken"))
    many = tuple(Bucket(str(number), number) for number in range(60))
    return Page("t", TOTAL, (KeyBar(key, 0, 1, 1),), (Trail(key, points),), (Bucket("1", 1),), many)


def test_every_element_is_closed_and_every_picture_is_there():
    assert Tags(draw(full_page())).seen.count("svg") == 4


def test_an_empty_table_has_a_page_too():
    page = draw(Page("t", TOTAL | {"rows": 0, "keys": 0, "lost": 0, "reordered": 0}, ()))
    assert Tags(page).seen.count("svg") == 0


def test_a_single_row_is_drawn_in_the_middle():
    assert "M130.0 105.0h0" in draw(Page("t", TOTAL, (), (Trail("a", (Point(0, 5, "in order"),)),)))


def test_a_key_that_looks_like_markup_is_shown_as_it_is():
    page = draw(full_page("<script>alert(1)</script>"))
    assert "script" not in Tags(page).seen
    assert "&lt;script&gt;" in page


def test_what_was_not_judged_is_not_called_good():
    page = draw(Page("t", TOTAL | {"reordered": None, "max_displacement": None, "guarantee": None}, ()))
    assert '<b class="">?</b><span>reordered</span>' in page
    assert "order could not be judged" in page
