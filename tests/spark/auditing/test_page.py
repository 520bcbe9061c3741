from __future__ import annotations

from html.parser import HTMLParser

from seriatim.spark.auditing.charts import Bucket, KeyRow, Point, Trail
from seriatim.spark.auditing.page import Page, draw

COUNTS = {"keys": 1, "rows": 3, "distinct": 3, "duplicates": 0, "conflicts": 0, "lost": 1, "reordered": 1, "invalid": 0}
TOTAL = COUNTS | {"max_displacement": 1, "guarantee": "none"}
INJECTION = "<script>alert('\"')</script>"


class Tags(HTMLParser):
    """The elements of a page, each closed in its turn, and the text of its pictures."""

    VOID = ("meta",)

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def full_page(key: str = "a", title: str = "t") -> Page:
    points = (Point(0, 1, "in order"), Point(1, 3, "in order"), Point(2, 2, "overtaken"))
    many = tuple(Bucket(str(number), number) for number in range(60))
    row = KeyRow(key, 1_234, 0, 1, 1, 0, 1, "none", "2 came after 3")
    return Page(title, TOTAL, (row,), (Trail(key, points),), (Bucket("1", 1),), many)


def without_faults(title: str) -> Page:
    total = TOTAL | {"lost": 0, "reordered": 0, "max_displacement": 0, "guarantee": "absolute"}
    points = (Point(0, 1, "in order"), Point(1, 2, "in order"))
    return Page(title, total, (), (Trail("a", points),))


def test_every_element_is_closed_and_every_picture_is_there():
    page = draw(full_page())
    pictures = page.count('role="img"')
    assert (pictures, page.count("<desc>"), page.count("<details>")) == (4, 4, 3)
    assert Tags(page).seen.count("title") >= 1 + pictures


def test_nothing_is_loaded_and_nothing_runs():
    page = draw(full_page(), full_page())
    assert not {"script", "link", "img", "iframe", "object"} & {*Tags(page).seen}
    assert not {"src", "href", "style", "onclick"} & {*Tags(page).attributes}
    assert "url(" not in page
    assert "http" not in page


def test_what_is_in_a_picture_is_in_a_table_too():
    page = draw(full_page())
    for cell in ("1,234", "2 came after 3", "none"):
        assert f'<td class="n">{cell}</td>' in page
    assert '<th scope="row">59</th><td class="n">59</td>' in page
    assert '<th scope="row">0</th>' not in page  # an empty bucket


def test_an_empty_table_has_a_page_too():
    page = draw(Page("t", TOTAL | {"rows": 0, "keys": 0, "lost": 0, "reordered": 0}, ()))
    assert Tags(page).seen.count("svg") == 0


def test_a_single_row_is_drawn_in_the_middle():
    assert "M500 500h0" in draw(Page("t", TOTAL, (), (Trail("a", (Point(0, 5, "in order"),)),)))


def test_a_key_or_a_title_that_looks_like_markup_is_shown_as_it_is():
    page = draw(full_page(INJECTION, INJECTION), full_page(INJECTION, INJECTION))
    assert "script" not in Tags(page).seen
    assert "&lt;script&gt;" in page


def test_what_was_not_judged_is_not_called_good():
    page = draw(Page("t", TOTAL | {"reordered": None, "max_displacement": None, "guarantee": None}, ()))
    assert '<dt>reordered</dt><dd class="">?</dd>' in page
    assert "order could not be judged" in page


def test_two_audits_are_side_by_side_on_one_scale():
    more = full_page(title="after")
    more = Page("after", more.total, more.worst, more.trails, (Bucket("1", 4), Bucket("2", 2)), ())
    page = draw(full_page(title="before"), more)
    Tags(page)
    assert page.index("<h3>before</h3>") < page.index("<h3>after</h3>")
    # One row that was behind by 1 is a quarter as high as four.
    heights = [rect.split('height="')[1].split('"')[0] for rect in page.split("<rect ") if "<title>1: " in rect]
    assert [float(height) for height in heights[:2]] == [42.5, 170.0]


def test_where_nothing_is_wrong_any_more_that_is_said():
    page = draw(full_page(title="before"), without_faults("after"))
    assert "<div><h3>after</h3><p>none</p></div>" in page
    assert 'after: held for every key: <b class="good">absolute</b>' in page
