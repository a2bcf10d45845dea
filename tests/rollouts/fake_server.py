"""A vLLM server, played by a few lines of HTTP."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch

from tagrpo.rollouts import SamplingConfig
from tagrpo.rollouts.engines.weight_stream import receive_weights
from tagrpo.rollouts.servers.access import shared_token
from tagrpo.types import Request

PROMPTS = [torch.tensor([10, 11]), torch.tensor([20, 21, 22]), torch.tensor([30])]
SAMPLING = SamplingConfig(max_new_tokens=4)
WEIGHTS = [("a", torch.arange(6.0).reshape(2, 3)), ("b", torch.tensor([7, 8], dtype=torch.bfloat16))]


class FakeServer:
    """Speaks a vLLM server's routes; its response to a prompt is the sum of its weights, again and again.

    A response is the sum, the first token of the prompt, and a stop token. `fail` maps a route to what happens before
    it answers: an exception to raise, or a callable. A route that returns bytes sends them as they are.
    """

    def __init__(self, host="127.0.0.1", port=0):
        self.version, self.weights, self.calls, self.fail = "default", {}, [], {}
        self.lacking, self.updating = [], False
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer({})

            def do_POST(self):
                length = int(self.headers["Content-Length"])
                self.answer(json.loads(self.rfile.read(length) or b"{}"))

            def answer(self, body):
                route = self.path.strip("/").partition("?")[0]
                fake.calls.append(route)
                try:
                    if self.headers["Authorization"] != f"Bearer {shared_token()}":
                        raise Refusal(401)
                    fake.fail.get(route, lambda: None)()
                    status, reply = 200, getattr(fake, route.replace("/", "_"), lambda _: {})(body)
                except Refusal as refusal:
                    status, reply = refusal.status, {"error": "no"}
                except ConnectionAbortedError:
                    return  # hangs up
                content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer((host, port), Handler)
        self.http.handle_error = lambda *_: None  # a client that hung up
        self.url = f"http://{host}:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    def restart(self):
        """What is left of a server that was killed and started again."""
        self.version, self.weights, self.updating = "default", {}, False

    def weight_info(self, _):
        return {"weight_version": self.version}

    def v1_models(self, _):
        return {"data": [{"max_model_len": 100}]}

    def update_weight_version(self, body):
        self.version = body["new_version"]
        return {}

    def tagrpo_flags(self, _):
        return {"lacking": self.lacking, "backend": "tcp", "workers": 2}

    def start_weight_update(self, _):
        if self.updating:
            raise Refusal(500)
        self.updating = True
        return {}

    def update_weights(self, body):
        assert self.updating
        try:
            with_two_workers = [dict(receive_weights(**body["update_info"])) for _ in range(2)]
        except OSError:
            self.updating = False
            raise
        assert with_two_workers[0].keys() == with_two_workers[1].keys()
        self.weights = with_two_workers[0]
        return {}

    def finish_weight_update(self, body):
        if not self.updating:
            raise Refusal(500)
        self.updating = False
        self.version = body.get("weight_version", self.version)
        return {}

    def inference_v1_generate(self, body):
        total = sum(int(tensor.float().sum()) for tensor in self.weights.values())
        params = body["sampling_params"]
        ids = [total, body["token_ids"][0], params["stop_token_ids"][0]]
        logprobs = zip(ids, (-0.5, -0.25, 0.0), strict=True)
        choice = {
            "token_ids": ids,
            "logprobs": {"content": [{"token_id": token, "logprob": value} for token, value in logprobs]},
            "finish_reason": "stop",
            "weight_versions": [{"version": self.version, "start": 0, "end": 3}],
        }
        return {"choices": [{**choice, "index": i} for i in reversed(range(params["n"]))]}


class Refusal(Exception):
    def __init__(self, status):
        self.status = status


def raising(error, times=10**9):
    """Raise `error` the first `times` times."""
    left = [times]

    def fail():
        left[0] -= 1
        if left[0] >= 0:
            raise error

    return fail


def sampled(engine, counts=(3, 1, 9)):
    results = engine.generate(Request(PROMPTS, list(counts), SAMPLING, 0))
    assert [len(samples) for samples in results] == list(counts)
    return {tuple(sample.token_ids[:-1].tolist()) for samples in results for sample in samples}
