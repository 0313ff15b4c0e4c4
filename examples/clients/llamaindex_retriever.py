"""A LlamaIndex retriever over the HTTP API of ELF.

    ELF_API_KEY=elf_… python llamaindex_retriever.py "my parcel never came"
"""

import json
import os
import sys
from urllib.request import Request, urlopen

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode


class ElfRetriever(BaseRetriever):
    def __init__(self, key, url="http://127.0.0.1:9465", limit=5, filter=None):
        super().__init__()
        self.key, self.url, self.limit, self.filter = key, url, limit, filter or {}

    def _retrieve(self, query_bundle):
        asked = {"query": query_bundle.query_str, "limit": self.limit, "filter": self.filter}
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        request = Request(f"{self.url}/v2/searches", json.dumps(asked).encode(), headers)
        with urlopen(request, timeout=30) as answer:
            items = json.load(answer)["items"]
        return [
            NodeWithScore(
                node=TextNode(
                    id_=item["chunk_id"],
                    text=item["context"]["text"],
                    metadata={name: item[name] for name in ("note_id", "key", "start_offset", "end_offset")},
                ),
                score=item["score"],
            )
            for item in items
        ]


if __name__ == "__main__":
    url = os.environ.get("ELF_API_URL", "http://127.0.0.1:9465")
    for found in ElfRetriever(os.environ["ELF_API_KEY"], url).retrieve(sys.argv[1]):
        print(found.node.metadata["note_id"], found.node.text)
