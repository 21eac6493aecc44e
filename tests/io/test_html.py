"""Pages that are whole by themselves."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from matplotlib.figure import Figure

from dspreg.io.html import inline, png, render_page


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.said = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.said += data


def sha256(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def policy_of(read):
    return next(a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")


def test_names_are_text_and_never_markup():
    bad = '<script>alert(1)</script>"><img src=x>'
    read = Reader(render_page(bad, "<h1>{{ name }}</h1>{{ picture(name, image) }}", name=bad, image=inline(b"x")))
    tags = [tag for tag, _ in read.tags]
    assert "script" not in tags
    assert tags.count("img") == 1
    assert bad in read.said


def test_nothing_is_loaded_from_elsewhere():
    text = render_page("t", "{{ picture('c', image) }}", image=inline(png(Figure())))
    read = Reader(text)
    style = sha256(re.search("<style>(.*?)</style>", text, re.S)[1])
    wanted = f"default-src 'none'; img-src data:; style-src '{style}'; base-uri 'none'; form-action 'none'"
    assert policy_of(read) == wanted
    sources = [a["src"] for _, a in read.tags if "src" in a]
    assert len(sources) == 1
    assert base64.b64decode(sources[0].removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert "http://" not in text
    assert "https://" not in text
    assert "prefers-color-scheme: dark" in text


def test_a_script_is_allowed_by_its_hash_alone():
    text = render_page("t", "<p>{{ name }}</p>", script="let a = 1 < 2 && '</p>';", name="<script>alert(1)</script>")
    (script,) = re.findall("<script>(.*?)</script>", text, re.S)
    assert script == "let a = 1 < 2 && '</p>';"
    assert f"script-src '{sha256(script)}'" in policy_of(Reader(text))
    assert "script-src" not in policy_of(Reader(render_page("t", "")))


def test_what_turns_a_line_round_is_shown_as_it_is_written():
    text = render_page("t\u202e", "{{ name }}", name="a\u202eb\x1b\u2066")
    assert not set(text) & set("\u202e\u2066\x1b")
    assert "a\\u202eb\\x1b\\u2066" in text


def test_both_themes_have_the_same_variables():
    text = render_page("t", "", light="--x: red;", dark="--x: blue;")
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", text)
    names = [sorted(re.findall(r"(--[\w-]+):", block)) for block in blocks if "--line" in block]
    assert len(names) == 4
    assert all(each == names[0] for each in names)
    assert [("red" in b, "blue" in b) for b in blocks if "--line" in b] == [(True, False), (False, True)] * 2
