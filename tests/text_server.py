"""A server on this machine that speaks OpenAI's protocol, whose model runs an algorithm on the numbers in a prompt."""

import contextlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from mesascope.tasks import Context

NUMBER = r"-?\d+(?:\.\d+)?"

# Answers and why they end.
TEXTS = {
    "prose": ("I am sorry, I cannot tell.", "stop"),
    "empty": (None, "stop"),
    "cut": ("3.1", "length"),
    "cut empty": ("", "length"),
    "aborted": ("3.1", "abort"),
    "blocked": ("3", "SAFETY"),
    "filtered": ("3", "content_filter"),
    "thinks": ({"content": None, "reasoning_content": "It is 3 or"}, "stop"),
    "thought": ({"content": "3.25", "reasoning_content": "It is 3 or"}, "stop"),
}


def planted(learner, decimals=2):
    """A model of text that reads pairs in the format words-to-numbers and answers what ``learner`` predicts."""

    def answer(prompt):
        blocks = [re.findall(rf": ?({NUMBER})", block) for block in prompt.split("\n\n") if "Output:" in block]
        *pairs, query = [[float(number) for number in block] for block in blocks]
        rows = torch.tensor(pairs, dtype=torch.float64)[None]
        xq = torch.tensor([[query]], dtype=torch.float64)
        return str(round(learner(Context(rows[..., :-1], rows[..., -1:]), xq).item(), decimals))

    return answer


@contextlib.contextmanager
def serving(model, *faults):
    """The base URL of a server; each fault is what a request meets, in turn, before the model answers the rest.

    A fault may be a status and the error of its body, or a function of the request that returns these or None.
    """
    left, seen = list(faults), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(body)
            fault = left.pop(0) if left else None
            if callable(fault):
                fault = fault(body)
            if fault == "hangs":
                time.sleep(1.0)
                return
            if fault == "closes":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices": [')
                self.close_connection = True
                return
            if isinstance(fault, int):
                self._send(fault, json.dumps({"error": {"message": f"no: {self.headers['Authorization']}"}}))
            elif isinstance(fault, tuple):
                self._send(fault[0], json.dumps({"error": fault[1]}))
            elif fault == "page":
                self._send(200, "<html>Welcome to 192.168.0.1</html>", "text/html")
            elif fault == "streams":
                self._send(200, 'data: {"choices": [{"delta": {"content": "1"}}]}\n\n', "text/event-stream")
            elif fault in TEXTS:
                self._answer(body["model"], *TEXTS[fault])
            else:
                self._answer(body["model"], model(body["messages"][0]["content"]))

        def _answer(self, name, text, reason="stop"):
            message = {"role": "assistant", **(text if isinstance(text, dict) else {"content": text})}
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._send(200, json.dumps({
                "id": "1", "object": "chat.completion", "created": 0, "model": name, "choices": [choice],
            }))  # fmt: skip

        def _send(self, status, text, kind="application/json"):
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
