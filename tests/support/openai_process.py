"""A server that speaks the OpenAI protocol, for a process of its own: `python openai_process.py` prints its port.

It has no model: what it writes follows from the question and the schema. It counts words as tokens, streams word by
word, refuses what the protocol does not have, and misbehaves where the model's name asks for it:

    limited-K     the first K calls are refused with 429 and `Retry-After: 1`
    busy-K        the first K calls fail with 503
    quota         429 with the code `insufficient_quota`
    slow          a second passes before the answer, and between words
    MODEL/vllm    also takes what vLLM adds to the protocol; MODEL/sglang what SGLang adds

`GET /calls` tells the calls so far: model, path, when.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

COMMON = {"model", "max_tokens", "temperature", "top_p", "seed", "stop", "n", "stream", "stream_options", "logprobs"}
COMMON |= {"frequency_penalty", "presence_penalty", "logit_bias"}
CHAT = COMMON | {"messages", "response_format", "max_completion_tokens"}
COMPLETIONS = COMMON | {"prompt", "echo"}
EXTENDED = {"top_k", "min_p", "min_tokens", "continue_final_message", "add_generation_prompt", "stop_token_ids"}
EXTRAS = {"vllm": EXTENDED | {"structured_outputs"}, "sglang": EXTENDED | {"regex", "ebnf", "json_schema"}}

calls: list[dict[str, Any]] = []
lock = threading.Lock()


class Refused(Exception):
    """An answer that is an error."""

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers or {}


def check(body: dict[str, Any], known: set[str]) -> None:
    server = body["model"].partition("/")[2]
    unknown = set(body) - known - EXTRAS.get(server, set())
    if unknown:
        raise Refused(400, f"Unrecognized request argument supplied: {sorted(unknown)[0]}")
    name, _, number = body["model"].partition("/")[0].partition("-")
    with lock:
        before = sum(call["model"] == body["model"] for call in calls) - 1
    if name == "limited" and before < int(number):
        raise Refused(429, "Rate limit reached", "rate_limit_exceeded", {"Retry-After": "1"})
    if name == "busy" and before < int(number):
        raise Refused(503, "overloaded")
    if name == "quota":
        raise Refused(429, "You exceeded your current quota", "insufficient_quota")


def bound_text(body: dict[str, Any]) -> str | None:
    """The text of what the call binds, or None."""
    from babbling import babble
    from radicel.constraint import Constraint

    wanted = {**body, **body.get("structured_outputs", {})}
    if response_format := body.get("response_format"):
        schema = response_format["json_schema"]["schema"]
        return babble(Constraint.json_schema(schema))
    if "regex" in wanted:
        return babble(Constraint.regex(wanted["regex"]))
    if grammar := wanted.get("grammar") or wanted.get("ebnf"):
        return babble(Constraint.grammar(grammar))
    if "choice" in wanted:
        return str(wanted["choice"][0])
    if schema := wanted.get("json") or wanted.get("json_schema"):
        return babble(Constraint.json_schema(schema))
    return None


def written(body: dict[str, Any], asked: str) -> tuple[list[str], str]:
    """The words of the answer, and why it ends."""
    text = bound_text(body)
    if text is None:
        text = f"You said: {asked}"
    for stop in [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []:
        text = text.partition(stop)[0]
    words = re.findall(r"\s*\S+|\s+$", text)
    most = body.get("max_tokens") or body.get("max_completion_tokens") or len(words)
    return words[:most], "length" if len(words) > most else "stop"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None: ...

    def do_GET(self) -> None:
        with lock:
            self.send(200, calls)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            calls.append({"model": body["model"], "path": self.path, "at": time.time()})
        try:
            if self.path == "/v1/chat/completions":
                check(body, CHAT)
                self.answer(body, body["messages"][-1]["content"], chat=True)
            elif self.path == "/v1/completions":
                check(body, COMPLETIONS)
                self.answer(body, body["prompt"], chat=False)
            else:
                raise Refused(404, f"no {self.path}")
        except Refused as refused:
            self.send(refused.status, {"error": {"message": str(refused), "code": refused.code}}, refused.headers)
        except OSError:
            self.close_connection = True

    def answer(self, body: dict[str, Any], asked: Any, *, chat: bool) -> None:
        slow = 1.0 if body["model"].startswith("slow") else 0.0
        time.sleep(slow)
        words, reason = written(body, str(asked))
        prompt_words = len(str(body.get("messages") or asked).split())
        usage = {
            "prompt_tokens": prompt_words,
            "completion_tokens": len(words) * (body.get("n") or 1),
            "total_tokens": prompt_words + len(words),
            "prompt_tokens_details": {"cached_tokens": prompt_words // 2},
        }
        base = {"id": "x", "created": 0, "model": body["model"]}
        if not body.get("stream"):
            text = "".join(words)
            content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choices = [{"index": i, "finish_reason": reason, **content} for i in range(body.get("n") or 1)]
            kind = "chat.completion" if chat else "text_completion"
            self.send(200, {**base, "object": kind, "choices": choices, "usage": usage})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        kind = "chat.completion.chunk" if chat else "text_completion"
        for word in words:
            content = {"delta": {"content": word}} if chat else {"text": word}
            self.event({**base, "object": kind, "choices": [{"index": 0, "finish_reason": None, **content}]})
            time.sleep(slow)
        last = {"delta": {}} if chat else {"text": ""}
        self.event({**base, "object": kind, "choices": [{"index": 0, "finish_reason": reason, **last}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            self.event({**base, "object": kind, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, data: Any) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def send(self, status: int, data: Any, headers: dict[str, str] | None = None) -> None:
        payload = json.dumps(data).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
