# The commands of `forebay bench single`.

stream = None


def epoch():
    images = 0
    start = time.perf_counter()
    for batch in first():
        images += len(batch)
    reply(images=images, seconds=time.perf_counter() - start)
    check(batch)


def turn(skip, batches):
    global stream
    if stream is None:
        stream = iter(later())
        check(next(stream))
    for _ in range(skip):
        next(stream)
    start = time.perf_counter()
    images = 0
    for _ in range(batches):
        images += len(next(stream))
    reply(images=images, seconds=time.perf_counter() - start)


serve(epoch=epoch, round=turn)
