"""The program's own prompts. {text} stands for a text that the model wrote; the other names for one of a list each.

None of them is among the prompts that speculation is measured with (bench/texts/prompts.json).
"""

OVER_A_TEXT = [
    # shorten
    "Summarize the following text in one sentence.\n\n{text}",
    "Summarize the text below in {count} sentences:\n\n{text}",
    "What is this text about? Answer briefly.\n\n{text}",
    "{text}\n\nSum up the text above in your own words.",
    "Write a short abstract of this:\n\n{text}",
    "Give me the key points of the following passage as bullet points.\n\n{text}",
    "Write a headline for this text:\n{text}",
    "TL;DR:\n\n{text}",
    "{text}\n\nWhat should I remember from this?",
    "Shorten this to half its length and keep the important facts:\n\n{text}",
    # correct
    "Fix the grammar and spelling of this text and return only the corrected text:\n\n{text}",
    "Proofread the following. Reply with the improved version.\n\n{text}",
    "Please correct any mistakes in my text:\n{text}",
    "Check this paragraph for errors and write it again without them:\n\n{text}",
    "Add the missing punctuation to this text:\n\n{text}",
    # rewrite
    "Rewrite the following text in a formal style:\n\n{text}",
    "Rewrite this in simple language that a beginner understands:\n\n{text}",
    "Paraphrase this paragraph:\n\n{text}",
    "Make this text more friendly:\n{text}",
    "Copy the following text word for word:\n\n{text}",
    "Write the text below again in the past tense:\n\n{text}",
    "Turn this into a polite letter:\n\n{text}",
    "Rewrite this as a conversation between two friends:\n\n{text}",
    "Replace every long word in this text with a shorter one:\n\n{text}",
    "Change the following text from the first to the third person:\n\n{text}",
    "Continue this text with one more paragraph:\n\n{text}",
    "Write the opposite opinion of this text:\n\n{text}",
    # list
    "Make a numbered list of the ideas in this text:\n\n{text}",
    "Write a checklist from the following text:\n{text}",
    "Which {count} words describe this text best?\n\n{text}",
    "Write {count} questions that this text answers:\n\n{text}",
    "Ask me {count} quiz questions about this text and give the answers:\n\n{text}",
    "List the advantages and disadvantages that this text mentions:\n\n{text}",
    "Break the following down into steps:\n\n{text}",
    # table
    "Put the information of this text into a Markdown table with two columns:\n\n{text}",
    "Make a table of the terms in this text and what they mean:\n\n{text}",
    "Turn the text into a CSV file with a header line:\n\n{text}",
    # extract
    "Extract all people, places and organizations from this text:\n\n{text}",
    "Which dates and numbers appear in the following?\n\n{text}",
    "Extract the main facts of this text as a JSON object:\n\n{text}",
    "Find the most important sentence of this text and quote it:\n\n{text}",
    "List the nouns of the first sentence:\n\n{text}",
    "What is the tone of this text? Quote the words that show it.\n\n{text}",
    "Does the text give a reason? Quote it.\n\n{text}",
    "Answer with yes or no and explain: is this text about {topic}?\n\n{text}",
]  # fmt: skip

ALONE = [
    "Write a {language} function that {job}.",
    "Write a {language} program that {job}, with comments.",
    "How do I write code in {language} that {job}?",
    "Show me a small example in {language} that {job}, and explain how it works.",
    "Write unit tests for a {language} function that {job}.",
    "Implement a {structure} in {language}.",
    "What is a {structure} and when should I use it? Show an example in {language}.",
    "Explain {topic} to me.",
    "Write {count} paragraphs about {topic}.",
    "Give me {count} tips about {topic}.",
    "What are the most common mistakes in {topic}?",
    "Write a plan for a lesson about {topic}.",
    "Compare two views on {topic} in a table.",
    "Write a short poem about {topic}.",
    "Tell me a story in which {topic} plays a part.",
    "Write an e-mail to a colleague about {topic}.",
]

LISTS = {
    "count": ["two", "three", "four", "five", "six", "ten"],
    "language": ["Python", "JavaScript", "C", "C++", "Java", "Go", "Rust", "SQL", "Bash", "TypeScript", "Ruby", "PHP"],
    "structure": [
        "linked list", "binary search tree", "queue", "hash table", "priority queue", "graph", "matrix class", "cache",
        "trie", "ring buffer",
    ],
    "job": [
        "reverses a string", "sorts a list of records by date", "finds the largest number of a list",
        "computes Fibonacci numbers", "reads a CSV file and sums one column", "removes duplicates from a list",
        "converts Celsius to Fahrenheit", "checks whether two words are anagrams", "parses a date",
        "downloads a page and prints its title", "merges two sorted lists", "validates an e-mail address",
        "prints a multiplication table",
        "searches a folder for large files", "counts the vowels of a sentence", "computes the factorial of a number",
        "multiplies two matrices", "draws a random password", "groups orders by customer", "finds all palindromes",
        "turns a number into Roman numerals", "computes a moving average", "flattens a nested list",
        "plays rock, paper, scissors", "writes a log with time stamps",
    ],
    "topic": [
        "photosynthesis", "the French Revolution", "healthy sleep", "saving money", "electric cars", "volcanoes",
        "learning a language", "machine learning", "gardening in small spaces", "the water cycle", "public speaking",
        "Roman architecture", "black holes", "time management", "bicycles", "vaccines", "jazz", "supply and demand",
        "the ocean", "moving to a new city", "writing a novel", "renewable energy", "the human heart", "probability",
        "team work", "migration of birds", "ancient Egypt", "baking", "the internet", "negotiation", "gravity",
        "remote work", "dogs", "mountains", "recycling", "democracy", "the Moon", "algebra", "photography",
        "friendship",
    ],
}  # fmt: skip


def filled(template, random):
    """The template with one of each list; {text} stays."""
    for name, values in LISTS.items():
        if "{" + name + "}" in template:
            template = template.replace("{" + name + "}", values[random.integers(len(values))])
    return template
