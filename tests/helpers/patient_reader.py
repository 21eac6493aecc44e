"""What a process that reads does, looking for its trainer far more often; where a spawned process can import it."""

from dspreg.data import readers

make = readers.make_batches


def make_batches(shared, connection):
    readers.ORPHANED = 0.01
    make(shared, connection)


class Squares:
    def __getitem__(self, i):
        return i * i
