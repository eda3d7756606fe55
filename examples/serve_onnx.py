"""Serve a fused network: fuse, blocks, ONNX, and an HTTP server that needs onnxruntime and no PyTorch to answer.

    python examples/serve_onnx.py [--once]     # until Ctrl-C; with --once it answers one request to itself and ends

A request is a JSON document of images, 64 pixels from 0 to 1 each; the answer says their digits:

    curl http://127.0.0.1:8000 --data '{"images": [[0, 0, 0.3, …]]}'
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import onnxruntime
import torch

import partialfusion as pf
from partialfusion.demo import accuracy, logits, specialists


def build(file: Path) -> tuple[torch.nn.Module, torch.Tensor]:
    """Write the fused network as ONNX; returns it as PyTorch has it, and images to try it on."""
    pair = specialists(0)  # two small networks that know different digits, trained in seconds
    validation, test = (pair.test[half] for half in torch.arange(len(pair.test)).chunk(2))  # neither was trained on
    x = validation.images[:64]
    batches = torch.cat([pair.data_a.images, pair.data_b.images]).split(100)  # what they were trained on, unlabelled
    plain = pf.fuse([pair.a, pair.b], x, budget=1.5, data=batches)
    result = max(plain, pf.refit(plain, batches), key=lambda r: accuracy(logits(r.model, validation), validation))
    blocks = pf.to_blocks(result, x)  # only what is not zero is stored and multiplied
    pf.export_onnx(blocks, x, file)  # run and compared with PyTorch before it is written
    for name, model in (("model A", pair.a), ("model B", pair.b), ("fused", blocks)):
        size = sum(p.numel() for p in model.parameters())
        print(f"{name:8} {size:7,} parameters, {accuracy(logits(model, test), test):.1%} on the test images")
    return result.model, test.images


def server(file: Path, port: int) -> ThreadingHTTPServer:
    """Answers POST requests with the digits of their images; port 0 takes any that is free."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                sent = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                images = np.array(sent["images"], dtype=np.float32)
                if images.ndim != 2 or images.shape[1] != source.shape[1] or not len(images):
                    raise ValueError(f"images of shape {images.shape}")
            except (ValueError, TypeError, KeyError) as error:
                self.answer(400, {"error": f"send {{'images': n lists of {source.shape[1]} numbers}}, not {error}"})
                return
            (found,) = session.run(None, {source.name: images})
            self.answer(200, {"digits": found.argmax(1).tolist(), "logits": found.tolist()})

        def answer(self, code: int, document: dict[str, object]) -> None:
            body = json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main(arguments: Sequence[str] | None = None) -> tuple[dict[str, list], torch.Tensor] | None:
    parser = argparse.ArgumentParser(description="Fuse two networks and serve the result from an ONNX file.")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for fused.onnx")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--once", action="store_true", help="answer one request of its own and end")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "fused.onnx"
    model, images = build(file)
    with server(file, 0 if options.once else options.port) as web:
        url = f"http://127.0.0.1:{web.server_port}"
        print(f"serving {file} on {url}", flush=True)
        if not options.once:
            with suppress(KeyboardInterrupt):
                web.serve_forever()
            return None
        threading.Thread(target=web.serve_forever, daemon=True).start()
        with urlopen(Request(url, json.dumps({"images": images[:5].tolist()}).encode())) as reply:
            answer = json.load(reply)
        web.shutdown()
    print(f"answered {answer['digits']}")
    with torch.no_grad():
        return answer, model(images[:5])


if __name__ == "__main__":
    main()
