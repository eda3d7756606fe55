"""Serve a fused network over HTTP: fuse, blocks, ONNX, and a server that needs onnxruntime but not PyTorch.

It runs until Ctrl-C; with --once it sends itself one request and ends. A request has images of 64 pixels from 0 to 1:
    curl http://127.0.0.1:8000 --data '{"images": [[0, 0, 0.3, …]]}'
"""

from __future__ import annotations

import argparse
import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import partialfusion as pf


def train(images: Tensor, digits: Tensor) -> nn.Module:
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for batch in torch.randint(len(digits), (1500, 16)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(images[batch]), digits[batch]).backward()
        optimiser.step()
    return net.eval()


def build(file: Path) -> tuple[nn.Module, Tensor]:
    """Write the fused network as ONNX; returns it as a PyTorch module, and images to try it on."""
    torch.manual_seed(0)
    raw, order = load_digits(), torch.randperm(1797)
    images, digits = torch.tensor(raw.data[order] / 16, dtype=torch.float32), torch.tensor(raw.target[order])
    (test, images), (test_digits, digits) = (part.split((540, 1257)) for part in (images, digits))
    for_a = (digits == 4) | (torch.rand(len(digits)) < 0.1)  # A sees every 4 and a tenth of the rest, B what is left
    a, b = train(images[for_a], digits[for_a]), train(images[~for_a], digits[~for_a])
    result = pf.fuse([a, b], images[:64], budget=1.5, data=images.split(100), refit=True)
    blocks = pf.to_blocks(result, images[:64])  # stores and multiplies only the non-zero blocks
    pf.export_onnx(blocks, images[:64], file)  # compared with PyTorch before it is written
    for name, model in (("model A", a), ("model B", b), ("fused", blocks)):
        size, right = sum(p.numel() for p in model.parameters()), model(test).argmax(1) == test_digits
        print(f"{name:8} {size:7,} parameters, {right.float().mean():.1%} on the test images")
    return result.model, test


def server(file: Path, port: int) -> ThreadingHTTPServer:
    """Answers POST requests with the digits of their images; port 0 takes any free port."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                sent = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                images = np.array(sent["images"], dtype=np.float32)
                if images.ndim != 2 or images.shape[1] != source.shape[1] or not len(images):
                    raise ValueError(f"images of shape {images.shape}")
                (found,) = session.run(None, {source.name: images})
                code, answer = 200, {"digits": found.argmax(1).tolist(), "logits": found.tolist()}
            except (ValueError, TypeError, KeyError) as error:
                code, answer = 400, {"error": f"send {{'images': n lists of {source.shape[1]} numbers}}, not {error}"}
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main(arguments: list[str] | None = None) -> tuple[dict[str, list], Tensor] | None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for fused.onnx")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--once", action="store_true", help="send itself one request and end")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    model, images = build(file := options.out / "fused.onnx")
    with server(file, 0 if options.once else options.port) as web:
        url = f"http://127.0.0.1:{web.server_port}"
        print(f"serving {file} on {url}", flush=True)
        if not options.once:
            with suppress(KeyboardInterrupt):
                web.serve_forever()
            return None
        threading.Thread(target=web.handle_request).start()
        with urlopen(Request(url, json.dumps({"images": images[:5].tolist()}).encode())) as reply:
            answer = json.load(reply)
    print(f"answered {answer['digits']}")
    return answer, model(images[:5]).detach()


if __name__ == "__main__":
    main()
