# A consumer of TensorSocket. Without a GPU it would pickle every batch for every consumer; its hook for
# unpacking lets torch open the shared memory that the producer names instead.

# Its consumers cannot leave.
FRESH = True


def prepare():
    import tensorsocket
    import torch

    torch.set_num_threads(1)
    torch.multiprocessing.set_sharing_strategy("file_system")
    return f"TensorSocket {tensorsocket.__version__}"


def later():
    import pickle
    from tensorsocket import TensorConsumer

    port, ack_port, *heart_ports = map(int, ADDRESS.split(","))
    consumer = TensorConsumer(
        port,
        ack_port,
        tuple(heart_ports),
        unpack_fn=lambda data: tuple(map(pickle.loads, data)),
        batch_size=BATCH,
    )
    while True:
        for images, _ in consumer:
            yield images
