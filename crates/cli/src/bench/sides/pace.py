# The command of `forebay bench throttle`: processes that each read one file after another.


def prepare():
    return f"Python {sys.version.split()[0]}"


def run(files, count, seconds):
    until = time.monotonic() + seconds
    children = []
    for number in range(count):
        child = os.fork()
        if not child:
            while time.monotonic() < until:
                with open_throttled(files[number % len(files)]) as file:
                    file.read()
                number += 1
            os._exit(0)
        children.append(child)
    if any(os.waitpid(child, 0)[1] for child in children):
        raise RuntimeError("a reader failed")
    reply(done=True)


serve(run=run)
