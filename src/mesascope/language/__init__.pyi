from .preparing import prepare as prepare
from .shards import Corpus as Corpus, open_corpus as open_corpus
