import json

from .gguf import Gguf
from .tasks import ALONE, OVER_A_TEXT
from .tiny_model import default_model, quire, write_model
from .vocabulary import Vocabulary

LINES = [
    "Why is  the 12 sky 5th?   It's the world's 3.14, isn't it?",
    "def f(x):\n    return x_1 + 2  # naïve café\n\n\n",
    "Äpfel und Birnen, 100 %: «oui» 1,234.5\t\tend ",
]  # fmt: skip


def test_ids_are_those_of_quire():
    model = default_model()
    own = Vocabulary(Gguf(model).keys)
    lines = LINES + OVER_A_TEXT + ALONE
    shown = quire("tokenize", "-m", model, "--json", "--no-special", text="".join(json.dumps(x) + "\n" for x in lines))
    assert [own.encode(line) for line in lines] == [json.loads(line) for line in shown.splitlines()]
    assert [own.decode(own.encode(line)) for line in lines] == lines


def test_the_turn_is_that_of_quires_template(tmp_path):
    model = default_model()
    own = Vocabulary(Gguf(model).keys)
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": "Hello"}]))
    before, after = own.turn()
    assert own.decode([*before, *own.encode("Hello"), *after]) == quire("template", "-m", model, messages)


def test_merges_and_special_names(tmp_path):
    own = Vocabulary(Gguf(write_model(tmp_path / "tiny.gguf")).keys)
    assert [own.tokens[i] for i in own.encode("in the<|im_end|>an")] == ["in", "Ġthe", "<|im_end|>", "an"]
