"""Text in bulk, written by the target itself.

All rows of a round go in lockstep: each step gives every row one token, drawn or given, at the same position. A row
whose text has ended begins its next text right there; positions in front of a text's start are masked, and rotation
knows only differences of positions, so where a text begins makes no difference to it. So a step has no shapes or
decisions that depend on data: it is recorded once as a CUDA graph for each 128 positions that it looks back on, and all
bookkeeping is arithmetic on a number per row.

A text of kind "question" goes: the template up to the user's words, a question that the model draws, the template up
to the answer, an answer. The other kinds are given a whole prompt. Only answers are marked as drawn: they are what a
head is asked for. A text ends with the end of the answer, at the most tokens, or where the answer comes a second time
to the same LOOP tokens: small models go round in circles.
"""

import dataclasses
import time

import numpy as np
import torch

from .llama import Cache
from .tasks import ALONE, OVER_A_TEXT, filled
from .texts import HELD_EVERY, Text, load_shard, save_shard

LOOP = 12
LOOPS_KEPT = 24  # one text of so many may go round in circles
CANDIDATES = 256  # the likeliest tokens, which are all that is drawn from
LEAST_DRAWN = 16  # tokens of an answer; a text with fewer is not kept
GIVEN, QUESTION, TURN, ANSWER = range(4)  # what a row's next token is
DRAWN, FIRST, LOOPED = 1, 2, 4  # marks of a token: of an answer, a text's first, the end of a run that came again


@dataclasses.dataclass
class Options:
    rows: int = 2048
    length: int = 1024
    most_tokens: int = 768  # of a text
    most_question: int = 128
    most_given: int = 256  # tokens of a model's text inside a prompt
    texts_of_a_row: int = 16  # planned; after these the row begins again with the first
    seed: int = 1


@dataclasses.dataclass
class Plan:
    """What each row writes, [rows, texts]."""

    kinds: list
    prompts: np.ndarray  # [rows, texts, longest] int64
    prompt_lengths: np.ndarray
    temperatures: np.ndarray
    guarded: np.ndarray  # ends at a loop


class Planner:
    """Chooses prompts. Rows that are held are asked about texts from held rows alone, the others about the others."""

    def __init__(self, vocabulary, options):
        self.vocabulary, self.options = vocabulary, options
        self.before, self.after = vocabulary.turn()
        ends = [token.endswith((".", "!", "?", "Ċ", "```")) for token in vocabulary.tokens]
        self.ends_sentence = np.array(ends)
        self.banks = {False: [], True: []}  # answers to questions, by held

    def take(self, texts):
        """Remembers answers that prompts can be about."""
        for text in texts:
            if text.kind != "question":
                continue
            given = np.flatnonzero(~text.drawn)
            answer = text.ids[given[-1] + 1 :][: self.options.most_given]
            answer = answer[answer != self.vocabulary.end_of_turn]
            sentences = np.flatnonzero(self.ends_sentence[answer])
            if len(sentences) and sentences[-1] >= 24:
                self.banks[text.held].append(answer[: sentences[-1] + 1].tolist())

    def plan(self, random):
        """The kinds are drawn anew for each text: half questions, then tasks, a tenth raw."""
        options = self.options
        size = (options.rows, options.texts_of_a_row)
        texts = [[self._one(random, held=row % HELD_EVERY == 0) for _ in range(size[1])] for row in range(size[0])]
        longest = max(len(prompt) for row in texts for _, prompt in row)
        prompts, lengths = np.zeros((*size, longest), np.int64), np.zeros(size, np.int64)
        for i, row in enumerate(texts):
            for j, (_, prompt) in enumerate(row):
                prompts[i, j, : len(prompt)], lengths[i, j] = prompt, len(prompt)
        temperatures = np.where(random.random(size) < 0.5, 0, random.uniform(0.7, 1, size)).astype(np.float32)
        guarded = random.integers(LOOPS_KEPT, size=size) > 0
        return Plan([[kind for kind, _ in row] for row in texts], prompts, lengths, temperatures, guarded)

    def _one(self, random, held):
        """(kind, prompt)"""
        bank, dice = self.banks[held], random.random()
        if dice < 0.1:
            return "raw", self._raw(random, bank)
        if dice < 0.2:
            return "task", self._asked(filled(ALONE[random.integers(len(ALONE))], random), [])
        if dice < 0.5 and bank:
            template = filled(OVER_A_TEXT[random.integers(len(OVER_A_TEXT))], random)
            return "task", self._asked(template, bank[random.integers(len(bank))])
        return "question", self.before

    def _asked(self, template, text):
        head, _, tail = template.partition("{text}")
        encode = self.vocabulary.encode
        return [*self.before, *encode(head), *text, *encode(tail), *self.after]

    def _raw(self, random, bank):
        """The beginning of a text without any template, or nothing but the mark between texts."""
        if not bank or random.random() < 0.5:
            return [self.vocabulary.end_of_text]
        text = bank[random.integers(len(bank))]
        return text[: random.integers(8, 25)]


def draw(logits, temperature, top_p):
    """Ids [rows]: greedy where the temperature is 0, else from the likeliest tokens that have top_p together."""
    values, ids = logits.topk(min(CANDIDATES, logits.shape[1]), sorted=True)
    heat = temperature.clamp(min=1e-3)[:, None]
    total = (logits.float() / heat).logsumexp(1, keepdim=True)
    chances = (values.float() / heat - total).exp()
    before = chances.cumsum(1) - chances
    noise = torch.empty_like(chances).exponential_()
    score = (chances / noise).masked_fill(before >= top_p[:, None], -1)
    choice = score.argmax(1).masked_fill(temperature == 0, 0)
    return ids.gather(1, choice[:, None]).squeeze(1)


class Writer:
    """A round's rows on the device."""

    def __init__(self, model, vocabulary, options):
        self.model, self.options = model, options
        self.device = model.device
        rows, length = options.rows, options.length
        self.cache = Cache(model, rows, length)
        self.after = self._numbers(vocabulary.turn()[1])[1:]  # its first is the end of the turn, which is drawn
        self.ends = self._numbers([vocabulary.end_of_turn, vocabulary.end_of_text])
        self.row = torch.arange(rows, device=self.device)
        self.here = torch.arange(length, device=self.device)
        self.powers = torch.tensor([pow(6364136223846793005, k, 1 << 64) for k in range(LOOP)], dtype=torch.uint64)
        self.powers = self.powers.view(torch.int64).to(self.device)
        self.last_run = torch.arange(LOOP, device=self.device)
        self.position = self._numbers([0])
        self.tokens = torch.zeros(rows, length + 1, dtype=torch.int64, device=self.device)
        self.marks = torch.zeros(rows, length + 1, dtype=torch.uint8, device=self.device)
        self.runs = torch.zeros_like(self.tokens)  # a hash of the LOOP tokens up to here
        for name in ("text", "start", "given", "stage", "answer"):
            setattr(self, name, torch.zeros(rows, dtype=torch.int64, device=self.device))
        self.closing = torch.zeros(rows, dtype=torch.bool, device=self.device)
        self.graphs = {}

    def _numbers(self, values):
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def load(self, plan):
        """The plan's arrays stay at the same addresses from round to round, with room for the longest prompt."""
        room = self.options.length
        if not hasattr(self, "prompts"):
            size = plan.prompt_lengths.shape
            self.prompts = torch.zeros(*size, room, dtype=torch.int64, device=self.device)
            self.prompt_lengths = torch.zeros(size, dtype=torch.int64, device=self.device)
            self.temperatures = torch.zeros(size, device=self.device)
            self.guarded = torch.zeros(size, dtype=torch.bool, device=self.device)
            self.asks = torch.zeros(size, dtype=torch.bool, device=self.device)
        longest = min(plan.prompts.shape[2], room)
        self.prompts[:, :, :longest] = torch.from_numpy(plan.prompts[:, :, :longest])
        self.prompt_lengths.copy_(torch.from_numpy(plan.prompt_lengths))
        self.temperatures.copy_(torch.from_numpy(plan.temperatures))
        self.guarded.copy_(torch.from_numpy(plan.guarded))
        self.asks.copy_(torch.tensor([[kind == "question" for kind in row] for row in plan.kinds]))

    def begin(self):
        for name in ("position", "text", "start", "given", "answer", "tokens", "marks", "runs"):
            getattr(self, name).zero_()
        self.stage.fill_(GIVEN)
        self.closing.fill_(False)
        first = torch.zeros_like(self.row)
        self.tokens[:, 0] = self._follow(first, first)
        self.marks[:, 0] = FIRST

    def _of_text(self, table):
        return table[self.row, self.text]

    def _follow(self, drawn, next_position):
        """The rows' next tokens, and the stages after them."""
        stage, given = self.stage, self.given
        prompt = self.prompts[self.row, self.text, given.clamp(max=self.prompts.shape[2] - 1)]
        turn = self.after[given.clamp(max=len(self.after) - 1)]
        token = torch.where(stage == GIVEN, prompt, torch.where(stage == TURN, turn, drawn))
        given = given + ((stage == GIVEN) | (stage == TURN))
        prompt_ends = (stage == GIVEN) & (given >= self._of_text(self.prompt_lengths))
        question_ends = (stage == QUESTION) & (token == self.ends[0])
        turn_ends = (stage == TURN) & (given >= len(self.after))
        answer_begins = turn_ends | (prompt_ends & ~self._of_text(self.asks))
        after = stage.masked_fill(prompt_ends, QUESTION).masked_fill(question_ends, TURN)
        self.stage.copy_(after.masked_fill(answer_begins, ANSWER))
        self.given.copy_(given.masked_fill(question_ends, 0))
        self.answer.copy_(torch.where(answer_begins, next_position + 1, self.answer))
        return token

    def _again(self, next_position, seen):
        """Whether the run of LOOP tokens that ends at next_position, all of the answer, came before in the answer."""
        last = (next_position - self.last_run).clamp(min=0)
        run = (self.tokens.index_select(1, last) * self.powers).sum(1)
        self.runs.index_copy_(1, next_position, run[:, None])
        place = self.here[:seen]
        earlier = (place >= self.answer[:, None] + LOOP - 1) & (place < next_position)
        same = (self.runs[:, :seen] == run[:, None]) & earlier
        return same.any(1) & (next_position >= self.answer + 2 * LOOP)

    def step(self, seen):
        """Computes position `self.position`, which is below `seen`, and the tokens of the next one."""
        position, next_position = self.position, self.position + 1
        place = self.here[:seen]
        hidden = (place < self.start[:, None]) | (place > position)
        mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=self.device).masked_fill_(hidden, float("-inf"))
        ids = self.tokens.index_select(1, position).squeeze(1)
        logits = self.cache.decode(self.model, ids, position, mask)
        asking = self.stage == QUESTION
        temperature = self._of_text(self.temperatures).masked_fill(asking, 1.0)
        drawn = draw(logits, temperature, torch.full_like(temperature, 0.95).masked_fill(asking, 0.98))

        begins = self.closing.clone()
        self.text.copy_((self.text + begins.long()) % self.options.texts_of_a_row)
        self.start.copy_(torch.where(begins, next_position, self.start))
        self.given.masked_fill_(begins, 0)
        self.stage.masked_fill_(begins, GIVEN)
        stage = self.stage.clone()
        token = self._follow(drawn, next_position)
        self.tokens.index_copy_(1, next_position, token[:, None])

        answers = stage == ANSWER
        looped = self._again(next_position, seen) & answers & self._of_text(self.guarded)
        length = next_position + 1 - self.start
        too_long = length >= self.options.most_tokens
        question = length - self._of_text(self.prompt_lengths)
        no_answer = (stage == QUESTION) & ((question >= self.options.most_question) | (token == self.ends[1]))
        ends = answers & (token[:, None] == self.ends).any(1)
        self.closing.copy_(looped | too_long | no_answer | ends)
        marks = answers * DRAWN + begins * FIRST + looped * LOOPED
        self.marks.index_copy_(1, next_position, marks.to(torch.uint8)[:, None])
        self.position.add_(1)

    def _recorded(self, seen):
        """The step as a graph; recording computes nothing, warming up overwrites what begin() sets."""
        if seen not in self.graphs:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.step(seen)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            pool = next(iter(self.graphs.values())).pool() if self.graphs else None
            with torch.cuda.graph(graph, pool=pool):
                self.step(seen)
            self.graphs[seen] = graph
        return self.graphs[seen].replay

    def _steps(self):
        """What to call for each position in turn."""
        length, stride = self.options.length, 128
        ends = [min(at + stride, length) for at in range(0, length, stride)]
        if self.device.type == "cuda":
            calls = {end: self._recorded(end) for end in ends}
        else:
            calls = {end: lambda end=end: self.step(end) for end in ends}
        return [calls[min((at // stride + 1) * stride, length)] for at in range(length)]

    @torch.no_grad()
    def write(self, plan, seed):
        """The round's texts, as split() gives them."""
        self.load(plan)
        self.begin()
        steps = self._steps()
        self.begin()
        torch.manual_seed(seed)
        for step in steps:
            step()
        return split(self.tokens.cpu().numpy(), self.marks.cpu().numpy(), plan)


def split(tokens, marks, plan):
    """Yields (row, how many texts came before it there, text). The repeated run is taken from those that looped."""
    for row in range(len(tokens)):
        starts = np.flatnonzero(marks[row] & FIRST)
        for number, (begin, end) in enumerate(zip(starts, [*starts[1:], tokens.shape[1]], strict=True)):
            end -= LOOP if marks[row, end - 1] & LOOPED else 0
            drawn = (marks[row, begin:end] & DRAWN).astype(bool)
            planned = number % len(plan.kinds[row])
            greedy = bool(plan.temperatures[row, planned] == 0)
            ids = tokens[row, begin:end].astype(np.int32)
            yield row, number, Text(ids, drawn, plan.kinds[row][planned], greedy, row % HELD_EVERY == 0)


def answers(model, vocabulary, prompts, temperature, loops_cut, new_tokens, seed=1):
    """One answer to each prompt, a text each; prompts are words, asked through the chat template."""
    before, after = vocabulary.turn()
    asked = [[*before, *vocabulary.encode(prompt), *after] for prompt in prompts]
    longest = max(map(len, asked))
    options = Options(rows=len(asked), length=longest + new_tokens, most_tokens=longest + new_tokens, texts_of_a_row=1)
    shape = (len(asked), 1)
    plan = Plan(
        kinds=[["task"]] * len(asked),
        prompts=np.array([[prompt + [0] * (longest - len(prompt))] for prompt in asked]),
        prompt_lengths=np.array([[len(prompt)] for prompt in asked]),
        temperatures=np.full(shape, temperature, np.float32),
        guarded=np.full(shape, loops_cut),
    )
    written = Writer(model, vocabulary, options).write(plan, seed)
    first = [text for _, number, text in written if number == 0]
    for text, prompt in zip(first, asked, strict=True):  # rows went on as long as the one with the longest prompt
        text.ids, text.drawn = (part[: len(prompt) + new_tokens] for part in (text.ids, text.drawn))
    return first


def generate(model, vocabulary, options, folder, tokens, deadline, say):
    """Writes shards until there are `tokens` tokens; whether that was reached before the deadline."""
    planner, writer, have = Planner(vocabulary, options), None, 0
    for number in range(1 << 20):
        path = folder / f"shard-{number:04}.npz"
        if not path.exists():
            if have >= tokens:
                return True
            if time.monotonic() > deadline:
                return False
            begin = time.monotonic()
            writer = writer or Writer(model, vocabulary, options)
            random = np.random.default_rng([options.seed, number])
            written = writer.write(planner.plan(random), options.seed * 100003 + number)
            texts = [text for _, _, text in written if text.drawn.sum() >= LEAST_DRAWN]
            save_shard(path, texts)
            rate = options.rows * options.length / (time.monotonic() - begin)
            say(f"round {number}: {len(texts)} texts, {rate:,.0f} tokens/s")
        texts = load_shard(path)
        planner.take(texts)
        have += sum(len(text.ids) for text in texts)
        say(f"{have:,} of {tokens:,} tokens")
