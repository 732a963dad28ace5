"""report_check.py REPORT [ID ...] -- a report is well-formed HTML, has these ids, loads nothing, and draws finite numbers.

Prints "whole" or what is wrong; exit status 1 then.
"""
import html.parser
import re
import sys

VOID = {"meta", "br", "path", "link", "img"}  # path: written as <path .../>


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.wrong, self.text, self.numbers = [], [], [], [], 0

    def handle_startendtag(self, tag, attrs):
        self.see(tag, attrs)

    def handle_starttag(self, tag, attrs):
        self.see(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def see(self, tag, attrs):
        for name, value in attrs:
            value = value or ""
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action") or name.startswith("on"):
                self.wrong.append("%s has %s=%r" % (tag, name, value))
            if name in ("d", "data-at", "style"):
                if re.search(r"nan|inf", value):
                    self.wrong.append("%s of %s is not finite: %s" % (name, tag, value[:80]))
                self.numbers += len(re.findall(r"[0-9.]+", value))
            if name == "d":
                if not re.fullmatch(r"([MLHVhZ]?[-0-9. ]*)*", value) or (value and value[0] != "M"):
                    self.wrong.append("a path is %r" % value[:80])
                for y in re.findall(r"[ML]-?[0-9.]+ (-?[0-9.]+)", value):
                    if not -0.2 <= float(y) <= 1000.2:
                        self.wrong.append("a point is at %s of 1000" % y)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append("</%s> closes nothing" % tag)

    def handle_data(self, data):
        self.text.append(data)


with open(sys.argv[1], encoding="utf-8") as file:
    source = file.read()
page = Page()
page.feed(source)
page.close()
if page.open:
    page.wrong.append("not closed: %s" % page.open)
if not source.startswith("<!doctype html>") or not source.rstrip().endswith("</html>"):
    page.wrong.append("it does not begin or end as a page")
if len(set(page.ids)) != len(page.ids):
    page.wrong.append("an id is there twice: %s" % page.ids)
for name in sys.argv[2:]:
    if name not in page.ids:
        page.wrong.append("there is no id %r in %s" % (name, page.ids))
if re.search(r"url\(|@import|https?:|//[a-z]", source):
    page.wrong.append("it names something outside itself")
if source.count("<script") != 1:
    page.wrong.append("there are %d scripts" % source.count("<script"))
for wrong in page.wrong:
    print(wrong)
if not page.wrong:
    print("whole")
sys.exit(bool(page.wrong))
