"""A client of HTTP/3 for t/clients_http3.t, by aioquic.

    http3_client.py CERTIFICATE PORT MODE

whole                          uploads a picture, prints status and answer
upload-reset, upload-close     ends stream or connection in mid-upload
answer-stop, answer-close      the same in mid-answer
"""

import asyncio
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset

BOUNDARY = b"vlm-test-boundary"


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.events = asyncio.Queue()

    def quic_event_received(self, event):
        if isinstance(event, (StreamReset, ConnectionTerminated)):
            self.events.put_nowait(("cut", b""))

        for e in self.http.handle_event(event):
            if isinstance(e, HeadersReceived):
                self.events.put_nowait(("status", dict(e.headers)[b":status"]))

            elif isinstance(e, DataReceived):
                self.events.put_nowait(("data", e.data))

                if e.stream_ended:
                    self.events.put_nowait(("end", b""))

    async def next(self):
        return await asyncio.wait_for(self.events.get(), 20)

    def post(self, body, length):
        stream = self._quic.get_next_available_stream_id()
        self.http.send_headers(stream, [
            (b":method", b"POST"), (b":scheme", b"https"),
            (b":authority", b"localhost"), (b":path", b"/v"),
            (b"content-type", b"multipart/form-data; boundary=" + BOUNDARY),
            (b"content-length", b"%d" % len(body)),
        ])
        self.http.send_data(stream, body[:length], length == len(body))
        self.transmit()
        return stream


def form(prompt):
    return (b'--%s\r\nContent-Disposition: form-data; name="image"; '
            b'filename="a.jpg"\r\n\r\n%s\r\n'
            b'--%s\r\nContent-Disposition: form-data; name="prompt"\r\n\r\n'
            b"%s\r\n--%s--\r\n"
            % (BOUNDARY, b"x" * 300000, BOUNDARY, prompt, BOUNDARY))


async def run(client, mode):
    body = form(b"!slow 1000 20" if mode.startswith("answer") else b"good")

    if mode.startswith("upload"):
        stream = client.post(body, 100000)
        await asyncio.sleep(0.5)

        if mode == "upload-reset":
            client._quic.reset_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
            client.transmit()
            await client.ping()

        return

    stream = client.post(body, len(body))
    answer = b""

    while True:
        kind, data = await client.next()

        if kind == "status":
            print("status", data.decode())

        answer += data if kind == "data" else b""

        if kind in ("end", "cut"):
            print(answer.decode())
            print(kind)
            return

        if mode.startswith("answer") and b"t3" in answer:
            break

    if mode == "answer-stop":
        client._quic.stop_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
        client.transmit()
        await client.ping()


async def main(certificate, port, mode):
    conf = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN,
                             server_name="localhost")
    conf.load_verify_locations(certificate)

    async with connect("127.0.0.1", int(port), configuration=conf,
                       create_protocol=Client) as client:
        await run(client, mode)


asyncio.run(main(*sys.argv[1:]))
