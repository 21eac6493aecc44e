"""Pages that are whole by themselves."""

import base64
from html.parser import HTMLParser

from matplotlib.figure import Figure

from dspreg.pages import inline, page, png


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.said = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.said += data


def test_names_are_text_and_never_markup():
    bad = '<script>alert(1)</script>"><img src=x>'
    read = Reader(page(bad, "<h1>{{ name }}</h1>{{ picture(name, image) }}", name=bad, image=inline(b"x")))
    tags = [tag for tag, _ in read.tags]
    assert "script" not in tags
    assert tags.count("img") == 1
    assert bad in read.said


def test_nothing_is_loaded_from_elsewhere():
    text = page("t", "{{ picture('c', image) }}", image=inline(png(Figure())))
    read = Reader(text)
    policy = next(a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    sources = [a["src"] for _, a in read.tags if "src" in a]
    assert len(sources) == 1
    assert base64.b64decode(sources[0].removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert "http://" not in text
    assert "https://" not in text
    assert "prefers-color-scheme: dark" in text
