"""The lines that tokenizers are compared on, the same on every machine: words, characters and shapes that we chose, put
together by a small generator of our own. Standard library only, and nothing of it that changes between versions; all
characters were in Unicode by version 11, so that libraries of different age agree on what they are."""

import hashlib
import json

LINES = 24_000
BLOCK = 200  # lines to a fingerprint
SAMPLE = 400  # of so many lines one is kept with its ids


class Random:
    """Xorshift: the same numbers everywhere, which Python's own does not promise for choices and shuffles."""

    def __init__(self, seed):
        self.state = seed * 0x9E3779B97F4A7C15 % 2**64 | 1

    def below(self, limit):
        self.state ^= self.state << 13 & 2**64 - 1
        self.state ^= self.state >> 7
        self.state ^= self.state << 17 & 2**64 - 1
        return (self.state >> 11) % limit

    def pick(self, things):
        return things[self.below(len(things))]

    def chance(self, one_in):
        return self.below(one_in) == 0


# fmt: off
WORDS = {
    "english": """
        the of and a to in is you that it he was for on are as with his they at be this have from or one had by
        word but not what all were we when your can said there use an each which she do how their if will up
        other about out many then them these so some her would make like him into time has look two more write
        go see number no way could people my than first water been call who oil its now find long down day did
        get come made may part over new sound take only little work know place year live me back give most very
        after thing our just name good sentence man think say great where help through much before line right
        too mean old any same tell boy follow came want show also around form three small set put end does
        another well large must big even such because turn here why ask went men read need land different home
        us move try kind hand picture again change off play spell air away animal house point page letter mother
        answer found study still learn should America world tokenizer internationalization
        antidisestablishmentarianism unbelievable refactoring supercalifragilistic""".split(),
    "contracted": """
        don't I'm you're they've we'll he'd it's can't I've she'll they're wouldn't o'clock rock'n'roll DON'T
        I'M YOU'RE THEY'VE WE'LL HE'D IT'S 'tis 'twas y'all don’t I’m you’re they’ve we’ll he’d it’s 'S 'LL 'Re
        l'été d'accord aujourd'hui dell'arte 'ſ 'K""".split(),
    "french": "été où garçon œuvre naïve château français êtes élève mère ça déjà forêt hôtel Noël aigüe".split(),
    "german": "über Straße größer Äpfel Österreich schön Mädchen Fußgängerübergang weiß dürfen GROẞ".split(),
    "spanish": "¿qué? ¡hola! niño mañana corazón pingüino también años señor José está".split(),
    "turkish": "İstanbul ığdır şeker çocuk güneş ağaç öğretmen IŞIK ılık".split(),
    "polish": "żółć zażółć gęślą jaźń Łódź święto piąty źródło ćma".split(),
    "vietnamese": "Việt Nam tiếng nước người được không những Đà Nẵng phở Huế cửa hẻm".split(),
    "czech": "příliš žluťoučký kůň úpěl ďábelské ódy řeřicha čtvrtek".split(),
    "icelandic": "þetta ísland það sjö ævintýri Þór eyjafjallajökull".split(),
    "greek": "καλημέρα κόσμε ελληνικά Αθήνα θάλασσα φιλοσοφία ἄνθρωπος ᾠδή λόγος ΣΟΦΟΣ".split(),
    "russian": "привет мир который человек Москва ёлка съезд объявление БОЛЬШОЙ ещё жизнь".split(),
    "ukrainian": "Київ їжак ґанок єдність дякую п'ять".split(),
    "bulgarian": "нещо на Български щъркел ючбунар".split(),
    "serbian": "Београд љубав њива џеп ђак ћирилица".split(),
    "armenian": "բարև աշխարհ Երևան հայերեն".split(),
    "georgian": "გამარჯობა მსოფლიო თბილისი ქართული".split(),
    "hebrew": "שלום עולם ירושלים עברית בְּרֵאשִׁית תּוֹרָה ספר".split(),
    "arabic": "السلام عليكم العربية كتاب مُحَمَّد القاهرة لا إله ٱلْحَمْدُ ـــ".split(),
    "persian": "سلام دنیا می‌خواهم کتاب‌ها فارسی پنجره گچ".split(),
    "urdu": "آپ کیسے ہیں اردو پاکستان ٹھیک ۔".split(),
    "hindi": "नमस्ते दुनिया हिन्दी क्षत्रिय ज्ञान श्री विद्यार्थी क़लम ड़ र्‍य".split(),
    "bengali": "বাংলা ভাষা নমস্কার ক্ষমা রবীন্দ্রনাথ ড়".split(),
    "tamil": "தமிழ் வணக்கம் உலகம் கொடு நன்றி".split(),
    "telugu": "తెలుగు నమస్కారం ప్రపంచం".split(),
    "kannada": "ಕನ್ನಡ ನಮಸ್ಕಾರ".split(),
    "malayalam": "മലയാളം നമസ്കാരം".split(),
    "gujarati": "ગુજરાતી નમસ્તે".split(),
    "gurmukhi": "ਪੰਜਾਬੀ ਸਤਿ ਸ਼੍ਰੀ".split(),
    "sinhala": "සිංහල ආයුබෝවන් ශ්‍රී".split(),
    "thai": "สวัสดี ประเทศไทย ภาษาไทย น้ำ ผู้ใหญ่ ๑๒๓".split(),
    "lao": "ສະບາຍດີ ລາວ ນ້ຳ".split(),
    "khmer": "សួស្តី កម្ពុជា ភាសាខ្មែរ កាន់តែ".split(),
    "burmese": "မင်္ဂလာပါ မြန်မာ".split(),
    "tibetan": "བོད་ སྐད་ཡིག བཀྲ་ཤིས་བདེ་ལེགས།".split(),
    "amharic": "ሰላም ዓለም አማርኛ".split(),
    "mongolian": "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ᠌".split(),
    "cherokee": "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ꭰꭱ".split(),
    "chinese": "你好 世界 中文 我们 学习 人工智能 東京 臺灣 龍 の 我想在 工作 𠮷野家 〇 々".split(),
    "japanese": "こんにちは 世界 日本語 カタカナ ひらがな 東京 がぎぐ ガギグ ﾊﾝｶｸ ｶﾞ ー".split(),
    "korean": "안녕하세요 세계 한국어 서울 대한민국 값 각 한".split(),
    "math": "∑ ∫ √ ∞ ≈ ≠ ≤ ≥ ∂x/∂t α² β₃ ½ ⅓ ℝ ℵ ⊂ → ⇔ 𝔸𝕓 𝟙𝟚 ﬁ ﬂ ℃ Å Ω ①②③ Ⅷ ⅷ ㍿".split(),
    "symbols": "© ® ™ € £ ¥ § ¶ † ‡ • … – — “quoted” ‘x’ «guillemets» „tief“ ‹›  ￡ ￥ ﷼ ░▒▓ ─│┌ ♠♥♦♣ ♪ ☃".split(),
}

EMOJI = [
    "😀", "😂", "🤖", "🚀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👩🏾‍💻", "🇩🇪", "🇯🇵🇫🇷", "❤️", "☎️", "1️⃣", "🤷🏻‍♀️", "😶‍🌫️", "✅", "🦙",
    "⌚︎",
]

SPACES = [
    " ", "  ", "   ", "    ", "        ", "\t", "\t\t", " \t", "\n", "\n\n", "\n\n\n", "\r\n", "\r\n\r\n", "\r",
    " \n", "\n ", " \n \n", "\u00a0", " \u00a0", "\u2003", "\u3000", "\u2009", "\u200a", "\u202f", "\u205f", "\u1680",
    "\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\u200b", "\u200d", "\u2060", "\ufeff", "\u180e", "\u00ad",
]

PUNCTUATION = [
    ".", ",", "!", "?", ";", ":", "...", "!!", "?!", "--", "-", "'", '"', "''", "``", "(", ")", "[", "]", "{", "}",
    "<", ">", "/", "\\", "|", "@", "#", "$", "%", "^", "&", "*", "_", "+", "=", "~", "`", "</", "/>", "=>", "->",
    "::", "!=", "==", "&&", "||", "//", "/*", "*/", "<!--", "-->", "。", "、", "！", "？", "，", "：", "«", "»", "…", "।",
    "؟", "،", "·", "¿", "¡", "′", "“", "”", "’", "‘",
]

NUMBERS = [
    "0", "1", "7", "12", "123", "1234", "12345", "123456", "1234567890", "3.14159", "1,000,000", "-5", "+7", "1e-9",
    "0x1F", "0b101", "1/2", "50%", "$9.99", "2024-02-29", "23:59:59", "192.168.0.1", "1st", "2nd", "3D", "v1.2.3",
    "٠١٢٣", "۴۵۶", "०१२", "๑๒๓", "½", "²³", "₄", "Ⅷ", "①", "一二三", "１２３", "𝟙𝟚𝟛", "௧௨",
]

SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<|begin_of_text|>", "<|end_of_text|>",
    "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<repo_name>", "<file_sep>", "<empty_output>",
    "<jupyter_code>", "<|im_start|", "|im_end|>", "<|", "|>", "<0x0A>", "<0xFF>", "[PAD151700]", "[INST]", "<<SYS>>",
    "<|reserved_special_token_7|>", "<|reserved_special_token_", "▁", "▁▁", "Ġ", "Ċ", "\ufffd",
]

CODE = [
    "def f(x):\n    return x + 1\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n",
    "if x == y && !z { foo(); }", "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';",
    '<div class="row"><p>Hi &amp; bye</p></div>', "#include <vector>\n", "lambda x, *args, **kwargs: None",
    'printf("%d\\n", x);', "git commit -m 'fix: a bug' && git push", "$ ls -la ~/dir | grep -v '^d'",
    "camelCaseName snake_case_name SCREAMING_CASE kebab-case", "https://example.org/a/b?c=d&e=%20f#g",
    "user@example.com", "    indented\n        more\n\tand a tab", '{"key": [1, 2.5, true, null], "k\\u00e9": "v"}',
    "\\begin{equation} x^2_i \\end{equation}", "~~~python\n>>> print('hi')\n~~~", "| a | b |\n|---|:-:|\n| 1 | 2 |\n",
    "// TODO: fix\n/* block */", "x = [i**2 for i in range(10) if i % 2]",
    "fn main() -> Result<(), Box<dyn Error>> { Ok(()) }", "@app.route('/')\nasync def index(): ...",
    "0xDEADBEEF ^ (1 << 31)", "C:\\Users\\me\\file.txt",
]

# First and last characters of stretches without holes, of many scripts and symbols.
RANGES = [
    (0x20, 0x7E), (0xA1, 0x17F), (0x180, 0x24F), (0x250, 0x2AF), (0x300, 0x36F), (0x391, 0x3A1), (0x3A3, 0x3FF),
    (0x400, 0x4FF), (0x531, 0x556), (0x561, 0x587), (0x5D0, 0x5EA), (0x5B0, 0x5C7), (0x620, 0x64A), (0x64B, 0x655),
    (0x660, 0x669), (0x671, 0x6D3), (0x904, 0x939), (0x93A, 0x94D), (0x958, 0x96F), (0x985, 0x98C), (0xB92, 0xB95),
    (0xE01, 0xE3A), (0xE40, 0xE5B), (0xF40, 0xF47), (0x10D0, 0x10F0), (0x1100, 0x1112), (0x1161, 0x1175),
    (0x11A8, 0x11C2), (0x1200, 0x1248), (0x1780, 0x17DD), (0x1820, 0x1877), (0x1E00, 0x1EFF), (0x1F00, 0x1F15),
    (0x2000, 0x2064), (0x2070, 0x2071), (0x2074, 0x208E), (0x2090, 0x209C), (0x20A0, 0x20BE), (0x20D0, 0x20F0),
    (0x2100, 0x218B), (0x2190, 0x23FA), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x2E80, 0x2E99), (0x3001, 0x303F),
    (0x3041, 0x3096), (0x3099, 0x30FF), (0x3105, 0x312D), (0x3131, 0x318E), (0x3200, 0x321E), (0x3300, 0x33FF),
    (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xF900, 0xFA6D), (0xFB00, 0xFB06), (0xFE00, 0xFE0F), (0xFE50, 0xFE52),
    (0xFF01, 0xFFBE), (0x10000, 0x1000B), (0x10330, 0x1034A), (0x10400, 0x1049D), (0x1D400, 0x1D454),
    (0x1D7CE, 0x1D7FF), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F680, 0x1F6D0), (0x20000, 0x200FF),
    (0x2F800, 0x2FA1D),
]

MARKS = [
    "\u0300", "\u0301", "\u0302", "\u0303", "\u0308", "\u030a", "\u0323", "\u0327", "\u0328", "\u0331", "\u0345",
    "\u035c", "\u05b0", "\u064b", "\u0651", "\u093c", "\u094d", "\u0e48", "\u3099", "\u309a", "\u20dd", "\ufe0f",
]
# fmt: on


def sentence(random):
    words = WORDS[random.pick(list(WORDS))]
    text = ""
    for _ in range(2 + random.below(9)):
        word = random.pick(words) if not random.chance(6) else random.pick(random.pick(list(WORDS.values())))
        if random.chance(8):
            word = random.pick([str.upper, str.capitalize, str.title])(word) if word.isascii() else word
        text += word + (random.pick(PUNCTUATION) if random.chance(5) else "")
        text += " " if not random.chance(12) else random.pick(SPACES)
    return text if random.chance(4) else text.rstrip(" ")


def mixture(random):
    kinds = [
        EMOJI,
        SPACES,
        PUNCTUATION,
        NUMBERS,
        SPECIALS,
        WORDS["english"],
        WORDS["contracted"],
        random.pick(list(WORDS.values())),
    ]
    return "".join(random.pick(random.pick(kinds)) for _ in range(1 + random.below(12)))


def code(random):
    return random.pick(["", "\n", "  ", "\t"]).join(random.pick(CODE) for _ in range(1 + random.below(3)))


def conversation(random):
    start, end = random.pick(
        [("<|im_start|>", "<|im_end|>\n"), ("<|start_header_id|>", "<|eot_id|>"), ("<s>[INST] ", " </s>")]
    )
    return "".join(
        start + random.pick(["user", "assistant", "system", ""]) + "\n" + sentence(random) + end
        for _ in range(1 + random.below(3))
    )


def characters(random):
    first, last = random.pick(RANGES)
    text = ""
    for _ in range(1 + random.below(24)):
        if random.chance(6):
            first, last = random.pick(RANGES)
        text += chr(first + random.below(last - first + 1))
        if random.chance(9):
            text += random.pick(SPACES)
    return text


def marked(random):
    text = ""
    for _ in range(1 + random.below(8)):
        text += (
            random.pick("aeiouAEIOUncsz ")
            if not random.chance(4)
            else chr(random.pick([0x3B1, 0x438, 0x5D1, 0x628, 0x915, 0xE01, 0x304B, 0x1100]))
        )
        for _ in range(random.below(4)):
            text += random.pick(MARKS)
    return text


def run(random):
    unit = random.pick(
        [
            "a",
            " ",
            "\n",
            "\t",
            "=",
            "-",
            "0",
            "1",
            "é",
            "の",
            "😀",
            "\u00a0",
            "ab",
            " .",
            "\r\n",
            "ha",
            "!",
            "\u0301",
            " \n",
        ]
    )
    around = random.pick(["", "x", " ", "end"])
    return random.pick(["", around]) + unit * (1 + random.below(60)) + around


def number(random):
    digits = "".join(str(random.below(10)) for _ in range(1 + random.below(14)))
    return (
        random.pick(["", "$", "-", "No. ", "№"])
        + digits
        + random.pick(["", ".", ",", "%", " km", "°C", "th", "\n"])
        + random.pick(NUMBERS)
    )


KINDS = [
    sentence, sentence, sentence, mixture, mixture, code, conversation, characters, characters, marked, run, number,
]


def lines():
    """All lines, in order. The first are short and plain, the rest go through the kinds in turn."""
    random = Random(20240229)
    found = [
        "",
        " ",
        "  ",
        "\n",
        "\t",
        "a",
        "Hello",
        " Hello",
        "Hello ",
        "Hello world",
        "Hello, world!",
        *CODE,
        *EMOJI,
        *SPACES,
        *SPECIALS,
    ]
    while len(found) < LINES:
        found.append(KINDS[len(found) % len(KINDS)](random))
    return found[:LINES]


def digest(things):
    """A short fingerprint of a list of strings or of lists of ids."""
    return hashlib.sha256(json.dumps(things).encode()).hexdigest()[:16]


def blocks(things):
    """The fingerprints of each BLOCK things."""
    return [digest(things[start : start + BLOCK]) for start in range(0, len(things), BLOCK)]
