#!/usr/bin/env python3
"""Drives the chat page of a running server in headless Chromium.

Needs chromium and chromedriver (Debian: chromium, chromium-driver) and nothing
else: it speaks WebDriver's JSON over HTTP itself.

    scripts/e2e/page.py --base-url http://127.0.0.1:8080 [--shots DIR]
"""
import argparse
import base64
import json
import pathlib
import subprocess
import sys
import time
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


class Browser:
    """One Chromium session."""

    def __init__(self, chromedriver: str, dark: bool, size: tuple[int, int]):
        self.driver = subprocess.Popen([chromedriver, "--port=0"], stdout=subprocess.PIPE, text=True)
        for line in self.driver.stdout:
            if "on port" in line and "successfully" in line:
                self.url = "http://127.0.0.1:" + line.strip().rstrip(".").split()[-1]
                break
        flags = FLAGS + ["--force-dark-mode" if dark else "--force-light-mode"]
        options = {"args": flags, "mobileEmulation": {"deviceMetrics": {"width": size[0], "height": size[1], "pixelRatio": 1}}}
        body = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}}
        self.session = self.call("POST", "/session", body)["sessionId"]
        if dark:
            self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def call(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{method} {path}: {e.read().decode()[:500]}") from e

    def do(self, method, path, **body):
        return self.call(method, f"/session/{self.session}{path}", body)

    def cdp(self, cmd, **params):
        return self.do("POST", "/goog/cdp/execute", cmd=cmd, params=params)

    def js(self, script, *args):
        return self.do("POST", "/execute/sync", script=script, args=list(args))

    def find(self, selector):
        return self.do("POST", "/element", using="css selector", value=selector)[ELEMENT]

    def click(self, selector):
        self.do("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector, text):
        self.do("POST", f"/element/{self.find(selector)}/value", text=text)

    def texts(self, selector):
        return self.js("return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)", selector)

    def until(self, what, script, limit=30):
        end = time.monotonic() + limit
        while not self.js("return " + script):
            if time.monotonic() > end:
                raise AssertionError(f"not within {limit} s: {what}; the log: {self.texts('#log')}")
            time.sleep(0.02)

    def shot(self, folder, name):
        if folder:
            (folder / f"{name}.png").write_bytes(base64.b64decode(self.do("GET", "/screenshot")))

    def complaints(self):
        return [e["message"] for e in self.do("POST", "/se/log", type="browser") if e["level"] == "SEVERE"]

    def close(self):
        try:
            self.call("DELETE", f"/session/{self.session}")
        finally:
            self.driver.terminate()
            self.driver.wait()


IDLE = "!document.querySelector('#send').hidden && document.querySelectorAll('.turn.live').length === 0"


def ask(b, text):
    b.type("#input", text + "\ue007")  # Enter


def converse(b, base, shots):
    b.do("POST", "/url", url=base + "/")
    b.until("a model to choose", "document.querySelector('#model').value && !document.querySelector('#model').disabled")
    b.shot(shots, "empty")
    ask(b, "What is the capital of the US?")
    b.until("an answer", "document.querySelector('.assistant .stats')?.innerText.includes('first after')")
    b.until("idle", IDLE)
    assert "Washington" in b.texts(".assistant .text")[0], b.texts(".assistant .text")
    stats = b.texts(".assistant .stats")[0]
    assert "tokens/s" in stats and "first after" in stats, stats
    b.shot(shots, "answer")


def markup_is_text(b):
    ask(b, "<img src=x onerror=alert(1)> <b>bold</b>")
    b.until("idle", IDLE)
    assert "<b>bold</b>" in b.texts(".user .text")[-1]
    assert b.js("return document.querySelectorAll('#log img, #log b').length") == 0


def stop_and_reset(b, shots):
    # No answer of a model is sure to be long, so the tokens are: ignore_eos.
    b.js("""const send = window.fetch;
        window.fetch = (url, o) => o?.body ? send(url, {...o, body: JSON.stringify({...JSON.parse(o.body), ignore_eos: true})}) : send(url, o);""")
    ask(b, "Tell me a story.")
    b.until("some text", "document.querySelector('.turn.live .text')?.innerText.length > 20")
    b.shot(shots, "running")
    b.type("#input", "\ue00c")  # Escape
    b.until("idle", IDLE)
    assert "stopped" in b.texts(".assistant .stats")[-1], b.texts(".assistant .stats")
    b.click("#reset")
    assert b.texts(".turn") == []


def errors_show_the_servers_words(b, shots):
    b.click("#toggle")
    b.type("#max_tokens", "99999999999")
    b.shot(shots, "settings")
    b.click("#toggle")
    ask(b, "hi")
    b.until("an error", "document.querySelector('.error')")
    assert "max_tokens" in b.texts(".error span")[0], b.texts(".error span")
    b.shot(shots, "error")
    b.click("#toggle")
    b.click("#defaults")
    b.click("#toggle")
    b.click(".error button")
    b.until("an answer after trying again", IDLE + " && !document.querySelector('.error')")


def fits(b):
    assert b.js("return document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the window"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--base-url", required=True)
    p.add_argument("--chromedriver", default="chromedriver")
    p.add_argument("--shots", type=pathlib.Path, help="write screenshots into this folder")
    args = p.parse_args()
    if args.shots:
        args.shots.mkdir(parents=True, exist_ok=True)
    for name, dark, size in [("wide", False, (1200, 800)), ("phone-dark", True, (360, 740))]:
        shots = args.shots / name if args.shots else None
        if shots:
            shots.mkdir(exist_ok=True)
        b = Browser(args.chromedriver, dark, size)
        try:
            converse(b, args.base_url, shots)
            fits(b)
            markup_is_text(b)
            stop_and_reset(b, shots)
            errors_show_the_servers_words(b, shots)
            fits(b)
            loud = [m for m in b.complaints() if "400 (Bad Request)" not in m]
            assert not loud, loud
        finally:
            b.close()
        print(f"page: {name}: ok")


if __name__ == "__main__":
    sys.exit(main())
