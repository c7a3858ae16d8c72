"""What /metrics says, and whether it agrees with itself and with clients."""

import re

PATHS = ("/v1/completions", "/v1/chat/completions", "/generate", "/v1/embeddings")


class Metrics:
    def __init__(self, client):
        self.client = client

    async def read(self):
        """{name: value}; a line with labels beside the model's name has them in its name."""
        text = (await self.client.call("GET", "/metrics")).body.decode()
        values = {}
        for name, labels, value in re.findall(r"^([^\s{#]+)(\{[^}]*\})? (\S+)$", text, re.MULTILINE):
            more = [label for label in re.findall(r'(\w+)="([^"]*)"', labels) if label[0] not in ("model_name", "le")]
            values["/".join([name, *(value for _, value in more)])] = float(value)
        return values

    async def contradictions(self, counts):
        """When nobody is there any more. counts: answers by path and status, as clients have counted them."""
        values = await self.read()
        ended = values["sglang:num_requests_total"]
        found = []

        def expect(holds, what):
            if not holds:
                found.append(what)

        expect(values["quire:requests_in_flight"] == 0, f"{values['quire:requests_in_flight']} requests in flight")
        for name in ("e2e_request_latency_seconds", "prompt_tokens_histogram", "generation_tokens_histogram"):
            expect(values[f"sglang:{name}_count"] == ended, f"{ended} requests have ended, {name} has "
                   f"{values[f'sglang:{name}_count']}")  # fmt: skip
        expect(values["sglang:num_aborted_requests_total"] <= ended, "more were aborted than have ended")
        expect(values["sglang:time_to_first_token_seconds_count"] <= ended, "more first tokens than requests")
        expect(values["sglang:cached_tokens_total"] <= values["sglang:prompt_tokens_total"], "more cached than asked")
        for path in PATHS:
            seen, said = counts[f"{path} 200"], values.get(f"sglang:http_responses_total/{path}/200", 0)
            expect(seen <= said, f"clients have had {seen} answers of {path}, the server counts {said}")
        return found
