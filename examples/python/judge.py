"""How easy a sentence is to read: Flesch's formula for English, with the syllables guessed from the vowels."""

import re

import omni_stage


def syllables(word):
    groups = len(re.findall("[aeiouy]+", word.lower()))
    silent = word.lower().endswith("e") and not word.lower().endswith("le")
    return max(1, groups - silent)


def ease(text):
    words = re.findall("[A-Za-z']+", text)
    if not words:
        return None
    return 206.835 - 1.015 * len(words) - 84.6 * sum(map(syllables, words)) / len(words)


def judge(self, request, input, emit):
    for sentence in input:
        text = sentence.decode()
        score = ease(text)
        self["judged"] += 1
        if score is None:
            omni_stage.log("warn", "a sentence without words", text=text)
            continue
        emit({"ease": round(score, self["digits"]), "text": text})


omni_stage.serve(
    judge,
    open=lambda config: {"digits": config["digits"], "judged": 0},
    rpc={"judged": lambda self, args: self["judged"]},
)
