# TensorSocket's producer over the loader of torch.py, which stands before this in one file. It says its
# ports and begins when all consumers are there: who comes later would wait for the next epoch.

import socket
import threading
from multiprocessing.reduction import ForkingPickler


def ports(count):
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    return [one.getsockname()[1] for one in sockets]


class Acknowledgements:
    """Its socket, mended: each one says how far a consumer is, but the producer believes it only of new
    batches. After one that is lost, which happens at the start, it would send the same batch for ever."""

    def __init__(self, socket):
        self.poll, self.receive = socket.poll, socket.recv_multipart

    def recv_multipart(self):
        consumer, last, is_new = self.receive()
        return consumer, last, is_new if int(last) < 0 else b"1"


def produce():
    import torch
    from tensorsocket import TensorProducer

    prepare()
    torch.multiprocessing.set_sharing_strategy("file_system")
    port, ack_port, *heart_ports = chosen = ports(4)
    producer = TensorProducer(
        # A consumer that misses a heartbeat gets nothing more until such a long epoch ends.
        loader(5),
        port,
        ack_port,
        tuple(heart_ports),
        rubber_band_pct=0,
        pack_fn=lambda data: tuple(bytes(ForkingPickler.dumps(one)) for one in data),
        consumer_max_buffer_size=4,
        # With 1 it fails (IndexError in collate) as soon as a consumer has what it was sent.
        producer_batch_size=2,
    )
    producer.ack_socket = Acknowledgements(producer.ack_socket)
    reply(ready=",".join(map(str, chosen)))
    while len(producer.hb.consumers) < CONFIG["jobs"]:
        time.sleep(0.05)
    while True:
        for _ in producer:
            pass


# The end of stdin is the end of the turn. Python's own reader has a lock that workers would be forked with.
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
try:
    produce()
except ImportError as error:
    reply(missing=str(error))
except Exception as error:
    traceback.print_exc()
    reply(error=f"{type(error).__name__}: {error}")
os._exit(1)
