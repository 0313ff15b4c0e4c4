"""A LangChain retriever over the HTTP API of ELF.

    ELF_API_KEY=elf_… python langchain_retriever.py "my parcel never came"
"""

import json
import os
import sys
from urllib.request import Request, urlopen

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever


class ElfRetriever(BaseRetriever):
    url: str = "http://127.0.0.1:9465"
    key: str
    limit: int = 5
    filter: dict = {}

    def _get_relevant_documents(self, query, *, run_manager):
        body = json.dumps({"query": query, "limit": self.limit, "filter": self.filter}).encode()
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        with urlopen(Request(f"{self.url}/v2/searches", body, headers), timeout=30) as answer:
            items = json.load(answer)["items"]
        return [
            Document(
                id=item["note_id"],
                page_content=item["context"]["text"],
                metadata={name: item[name] for name in ("key", "score", "start_offset", "end_offset")},
            )
            for item in items
        ]


if __name__ == "__main__":
    url = os.environ.get("ELF_API_URL", ElfRetriever.model_fields["url"].default)
    retriever = ElfRetriever(url=url, key=os.environ["ELF_API_KEY"])
    for document in retriever.invoke(sys.argv[1]):
        print(document.id, document.page_content)
