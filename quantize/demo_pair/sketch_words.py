"""Hold the words of ``sketch`` as data: events, openings, endings and questions.

The templates are those of ``world``. Cast: ``h`` the hero, ``f`` the friend, ``t`` the thing, ``p`` the place, ``w`` the
weather, the day and the time of day.
"""

# ruff: noqa: E501 (each wording is on one line)
from __future__ import annotations

MOODS = ("happy", "sad", "funny")
KINDS_OF_THINGS = {
    "fly": ("kite", "balloon", "toy plane", "paper bird"),
    "roll": ("ball", "marble", "truck", "toy car", "toy train", "wagon", "hoop"),
    "float": ("toy boat", "paper boat", "sailboat", "toy ship"),
    "sound": ("drum", "whistle", "bell", "flute", "horn"),
    "wear": ("hat", "scarf", "mitten", "ribbon", "necklace", "cap"),
    "carry": ("bucket", "basket", "bowl", "box", "pail", "cup"),
    "soft": ("doll", "teddy bear", "puppet", "blanket", "pillow", "toy horse"),
}  # fmt: skip
WATERS = (
    ("by the lake", "the lake"),
    ("by the river", "the river"),
    ("by the pond", "the pond"),
    ("on the beach", "the beach"),
)
PLAY = {
    "fly": ("[h] let the [t] fly high in the sky.", "the [t] flew up, and [h] ran after it.", "up went the [t], higher than the trees."),
    "roll": ("[h] and [f] rolled the [t] back and forth.", "[h] pushed the [t], and [f] pushed it back.", "they played with the [t] on the path."),
    "float": ("[h] put the [t] on the water.", "the [t] swam on the water like a swan.", "[h] let the [t] go, and it sailed on the water."),
    "sound": ("[h] played the [t], and [f] danced.", "[h] made a song with the [t].", "[h] played a tune on the [t], loud and clear."),
    "wear": ("[h] wore the [t] and felt very fine.", "[h] showed the [t] to [f].", '"{I like your [t]|What a pretty [t]}," said [f].'),
    "carry": ("[h] filled the [t] with shells and stones.", "[h] carried the [t] in one hand.", "they put leaves and flowers in the [t]."),
    "soft": ("[h] and [f] played house with the [t].", "[h] sat down with the [t] in [h.his] arms.", "they told the [t] a long story."),
}  # fmt: skip
# Events by kind of thing: (the trouble as a clause, the friend's help, the loss, the joke).
EVENTS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "fly": (
        ("got stuck in a tree", "[f] climbed up and brought it down", "it was torn, and nobody could mend it", "a squirrel put it on its head and danced"),
        ("flew over the fence", "[f] crawled through a hole and got it back", "it flew far away, and they never saw it again", "a goat sat down on it and would not get up"),
        ("fell into the mud", "[f] washed it in the brook until it was clean", "it was broken, and nobody could mend it", "[f] fell into the mud, too, and only [f.his] nose was clean"),
        ("landed on a roof", "[f] fetched a ladder and got it down", "the wind came and took it away", "a cat pulled it into the window and wore it like a coat"),
    ),
    "roll": (
        ("rolled into the pond", "[f] fished it out with a long stick", "it sank, and they never saw it again", "a duck sat down on it and went for a ride"),
        ("rolled under a bush", "[f] pulled it out with a branch", "it was broken, and nobody could mend it", "a hedgehog rolled out with it and sneezed"),
        ("rolled down the hill", "[f] ran fast and caught it", "it fell into the river, and the river took it away", "it knocked a scarecrow over, and the hat landed on [f]"),
        ("fell into a deep hole", "[f] put an arm into the hole and got it out", "the hole was too deep, and they had to leave it there", "a mole came up, gave it back and shook its head"),
    ),
    "float": (
        ("began to swim away", "[f] threw a rope and pulled it back", "it went far away, and they never saw it again", "a frog jumped in and sailed like a captain"),
        ("got stuck between two stones", "[f] went into the water and set it free", "it was broken, and nobody could mend it", "a duck pushed it and quacked like a captain"),
        ("filled with water", "[f] turned it over, and it could swim again", "it sank, and they never saw it again", "a fish jumped in and looked at them with big eyes"),
    ),
    "sound": (
        ("did not make a sound", "[f] found a leaf in it and shook it out", "it was broken, and nobody could mend it", "a beetle crawled out of it and danced"),
        ("fell into a well", "[f] pulled it up with a bucket", "the well was too deep, and they had to leave it there", "a frog in the well began to play it"),
        ("woke a baby", "[f] sang a soft song, and the baby slept again", "the baby cried, and they had to give it away", "the baby laughed and wanted to play it, too"),
    ),
    "wear": (
        ("was blown away by the wind", "[f] ran after it and caught it", "it flew far away, and they never saw it again", "it landed on a cow, and the cow looked proud"),
        ("fell into a puddle", "[f] washed it and hung it up to dry", "it was torn, and nobody could mend it", "[f] jumped into the puddle, too, and looked like a mud pie"),
        ("was stolen by a bird", "[f] gave the bird some bread, and the bird gave it back", "the bird flew far away with it", "the bird wore it and sang a song"),
    ),
    "carry": (
        ("fell off a wall", "[f] picked it up and mended it", "it was broken, and nobody could mend it", "it landed on a dog, and the dog marched like a soldier"),
        ("was left on the road", "[f] ran back and found it", "a cart drove over it, and it was broken", "a hen sat in it and laid an egg"),
        ("fell into the river", "[f] fished it out with a long stick", "the river took it away, and they never saw it again", "a crab climbed in and waved at them"),
    ),
    "soft": (
        ("fell into a puddle", "[f] washed it and hung it up to dry", "it was torn, and nobody could mend it", "[f] jumped into the puddle, too, and looked like a mud pie"),
        ("was taken by a dog", "[f] threw a stick, and the dog gave it back", "the dog ran far away with it", "the dog gave it a kiss and fell asleep on it"),
        ("was left on a bench", "[f] ran back and found it", "it was gone, and they never saw it again", "a cat lay in its place and did not want to leave"),
    ),
}  # fmt: skip

INTROS = (
    "[h] was a [h.adj] [h.kind].",
    "there was a [h.adj] [h.kind] named [h].",
    "once upon a time, there was a [h.adj] [h.kind] named [h].",
    "a [h.adj] [h.kind] named [h] lived near [p3].",
    "this is the story of [h], a [h.adj] [h.kind].",
    "[h], a [h.adj] [h.kind], lived near [p3].",
)  # fmt: skip
EXTRAS = {
    "age": ("[h.He] was [x.age] years old.", "[h] was [x.age] years old."),
    "favorite": ("[h.his] favorite color was [x.favorite].", "[h] liked the color [x.favorite] best."),
    "pet": ("[h.he] had a [x.petkind] named [x.pet].", "at home, [h] had a [x.petkind] named [x.pet]."),
    "treat": ("[h.he] loved to eat [d].", "[h.his] favorite food was [d]."),
}  # fmt: skip
OUTINGS = {
    "w": ("one [w] [w.time], [h.he] went to [p] with [f.intro].", "on a [w] [w.time], [h.he] went to [p] with [f.intro].", "it was a [w] [w.time]. [h] went to [p] with [f.intro]."),
    "day": ("on [w.day], [h.he] went to [p] with [f.intro].", "one [w.day], [h] went to [p] with [f.intro].", "it was [w.day]. [h] went to [p] with [f.intro]."),
    "": ("one day, [h.he] went to [p] with [f.intro].", "[h.he] went to [p] with [f.intro].", "one day, [h] went to [p] with [f.intro]."),
}  # fmt: skip
FRIENDS = {
    "child": ("a [f.kind] named [f]", "[h.his] friend [f]", "[h.his] friend, a [f.kind] named [f]"),
    "animal": ("a [f.kind] named [f]", "[h.his] friend [f], a [f.kind]", "[h.his] friend [f] the [f.kind]"),
}
PACKED = ("they packed [x.list].", "in their bag they had [x.list].", "they also packed [x.list].")
BROUGHT = ("[h] had [t.a] with [h.him].", "[h] took [t.a] along.", "[h] brought [t.a].")
TROUBLE = (
    "but then the [t] [x.trouble]!",
    '"Oh no!" cried [h]. The [t] [x.trouble]!',
    "all at once, the [t] [x.trouble].",
)
OUTCOME = {
    "happy": ("[x.fix].", '"{Do not worry|I can help}," said [f]. [x.Fix].', "[h] did not know what to do. But [x.fix]."),
    "sad": ("[f] tried to help, but [x.loss].", "[x.loss].", '"{Can you help me|What can we do}?" asked [h]. But [x.loss].'),
    "funny": ("then [x.joke].", "and what came next? [x.Joke]!", '"Look!" cried [f]. [x.Joke]!'),
}  # fmt: skip
FEELING = {
    "happy": ("[h] was happy.", "[h] was so happy and hugged [f].", '"Thank you, [f]!" said [h]. [h.He] was happy.'),
    "sad": ("[h] was sad.", "[h] cried, and [f] held [h.his] hand. They were sad.", "[h] went home and was very sad."),
    "funny": ("they laughed and laughed.", "[h] laughed so hard that [h.he] fell over.", "how funny that was! [h] and [f] laughed all the way home."),
}  # fmt: skip
ENDINGS = {
    "happy": ("they played until [x.until].", "it was a good day.", "then they went home, hand in hand."),
    "sad": ("it was a sad day.", "that night, [h] dreamed of the [t].", '"{I miss it|It was dear to me}," said [h].'),
    "funny": ("it was the funniest day of all.", "at home, they told everybody.", '"{Nobody will believe this|What a funny day}," said [f].'),
}  # fmt: skip
SHORT = (
    "[h] and [f] went to [p] with [t.a]. It [x.trouble]. [x.End]. {fmood}",
    "[h] took [t.a] to [p], and [f] came, too. The [t] [x.trouble]. [x.End]. {fmood}",
)
NEXT = (
    "the next day, [h] and [f] went to [p2]. [h] had [u.a] with [h.him]. They played all day, and nothing bad happened.",
    "the next [x.next], [f] knocked at the door. [f.He] had a surprise for [h]: [u.a]! They took it to [p2] and played.",
    "a week later, [h] and [f] went to [p2]. There, [f] found [u.a]. \"{This is for you|You can have it},\" said [f] to [h].",
    "the next morning, there was [u.a] on the table. \"Who put it there?\" asked [h]. It was a gift from [g]. [h] and [f] took it to [p2].",
)  # fmt: skip
ROOMS = (
    "in the kitchen",
    "in the attic",
    "in the barn",
    "at school",
    "in bed",
    "in the bath",
    "on the stairs",
    "at the shop",
    "in the yard",
    "at home",
    "on the bus",
    "in the library",
)
CLOTHES = ("hat", "scarf", "coat", "cap", "vest", "shirt", "sweater", "jacket", "pair of boots", "raincoat")
ITEMS = (
    "a map", "a blanket", "a rope", "an umbrella", "a book", "a lamp", "a spoon", "a cup", "a pillow", "a coat", "a towel", "a pencil", "a bottle of water",
    "some bread", "some cheese", "a jar of honey", "a pie", "a cake", "a hammer", "a net", "a camera", "a comb", "a clock", "a bar of soap", "a tent", "a pot",
)  # fmt: skip
PETS = ("cat", "dog", "fish", "parrot", "hamster", "pony", "rabbit", "turtle")

UNKNOWN_SCENE = ("I do not know.",)
UNKNOWN = ("I do not know. The story does not say.", "The story does not say.")
# Wordings of questions, and of answers with * for the value, by kind of question. The program fills in the value.
ASKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "about": (("Who is the story about?", "Who is this story about?", "Who is the hero of the story?"), ("It is about *.", "The story is about *.")),
    "name": (("What is the name of the [h.kind]?", "What was the [h.kind]'s name?"), ("The name of the [h.kind] was *.", "*.")),
    "kind": (("What was [h]?", "Who was [h]?", "What kind of hero is [h]?"), ("[h] was a *.",)),
    "adj": (("What was [h] like?", "How would you describe [h]?"), ("[h] was *.",)),
    "friend": (("Who went with [h]?", "Who was with [h]?", "What was the name of [h]'s friend?", "Who came along?"), ("It was *.", "* was with [h].")),
    "fkind": (("What was [f]?", "Who was [f]?"), ("[f] was a *.",)),
    "place": (("Where did they go?", "Where did [h] go?", "To what place did [h] go?", "Where were they?"), ("They went to *.", "[h] went to *.")),
    "color": (("What color was the [t]?", "Which color did the [t] have?", "Tell me the color of the [t]."), ("It was *.", "The [t] was *.")),
    "thing": (("What did [h] bring?", "What did [h] have with [h.him]?", "What did [h] take along?"), ("[h] had *.", "It was *.")),
    "trouble": (("What happened to the [t]?", "What went wrong with the [t]?", "What was the trouble?"), ("The [t] *.", "It *.")),
    "end": (("How did the story end?", "What happened in the end?"), ("*",)),
    "feel": (("How did [h] feel in the end?", "Was [h] happy in the end?"), ("*",)),
    "weather": (("What was the weather like?", "How was the weather?"), ("It was *.", "The weather was *.")),
    "time": (("What time of day was it?", "Was it morning or evening?"), ("It was *.",)),
    "day": (("What day was it?", "On what day did it happen?", "Which day was it?"), ("It was *.", "It happened on a *.")),
    "age": (("How old was [h]?", "What was [h]'s age?"), ("[h] was * years old.", "* years old.")),
    "favorite": (("What was [h]'s favorite color?", "Which color did [h] like best?"), ("It was *.", "[h] liked * best.")),
    "pet": (("What was the name of [h]'s pet?", "What was the name of [h]'s [x.petkind]?"), ("It was *.", "The name was *.")),
    "treat": (("What did [h] like to eat?", "What was [h]'s favorite food?"), ("[h] liked *.", "It was *.")),
    "packed": (("What did they pack?", "What did they have in the bag?", "What was in the bag?"), ("They packed *.", "*.")),
    "home": (("Where did [h] live?", "Where was the home of [h]?"), ("[h] lived near *.", "Near *.")),
    "next place": (("Where did they go then?", "Where did they go after that?", "And where did they go later?"), ("They went to *.", "To *.")),
    "next color": (("What color was the [u]?", "Which color did the [u] have?", "Tell me the color of the [u]."), ("It was *.", "The [u] was *.")),
    "hero sex": (("Was [h] a boy or a girl?",), ("[h] was a *.",)),
}  # fmt: skip

TELL = (
    "Tell me",
    "Please tell me",
    "Write",
    "Can you tell me",
    "I want",
    "I would like",
    "Make up",
    "Could you write",
    "Let me hear",
)
SAD, HAPPY, FUNNY = (
    tuple(form.replace("*", mood) for form in ("Make it *.", "Make the story *.", "Can you make it *?", "Tell it again, but make it *.", "Now make it *.", "Give it a * ending."))
    for mood in MOODS[1:2] + MOODS[:1] + MOODS[2:]
)  # fmt: skip
SHORTER = (
    "Make it shorter.",
    "Shorter, please.",
    "Tell it in a few words.",
    "Can you make it shorter?",
    "What is the story in short?",
    "Sum it up.",
)
CONTINUE = (
    "Continue.",
    "Go on.",
    "What happened next?",
    "Tell me more.",
    "And then?",
    "Continue the story.",
    "How does it go on?",
)
LISTING = (
    "List what they packed.",
    "Make a list of what they packed.",
    "Give me a list of the things they packed.",
    "List the things in the bag.",
)
TITLE = ("Give it a title.", "What is a good title?", "What is the title of the story?", "Find a name for the story.")
PEOPLE = ("Who is in the story?", "List the names in the story.", "Name everybody in the story.", "What are the names?")
AGAIN = (
    "Tell me another story.",
    "Another one, please.",
    "One more story!",
    "Tell me one more.",
    "Again, but a new story.",
)

Talk = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
GREETINGS: Talk = (
    (("Hello!", "Hello", "Hi!", "Hi", "Hi there!", "Good morning!", "Hey!"), ("Hello! Shall I tell you a story?", "Hello! What shall I tell you?")),
    (("How are you?", "How do you do?", "Are you well?"), ("I am fine, thank you. Would you like a story?",)),
)  # fmt: skip
QUESTIONS_TO_ME: Talk = (
    (("Who are you?", "What are you?", "What is your name?"), ("I am a small model that tells stories.",)),
    (("What can you do?", "How can you help me?", "What do you know?"), ("I can tell stories, answer questions about them, and I know some simple things.",)),
    (("Ask me a question.", "Can you ask me something?"), ("What is your favorite story about?",)),
)  # fmt: skip
REMARKS: Talk = (  # people say this after a story
    (("That was a nice story.", "I liked that.", "What a good story!", "That was fun.", "I like this story."), ("I am glad that you like it.", "Thank you! I am glad.")),
    (("Did you make that up?", "Did you invent that?"), ("Yes, I made it up. It is only a story.",)),
    (("Is that true?", "Did that really happen?"), ("No, I made it up. It is only a story.",)),
    (("I do not like it.", "That was boring.", "I did not like the story."), ("I am sorry. Shall I tell you another one?",)),
)  # fmt: skip
THANKS: Talk = ((("Thank you!", "Thank you.", "Thanks!", "Thanks"), ("You are welcome!",)),)
GOODBYES: Talk = ((("Goodbye!", "Bye!", "Good night!", "Bye"), ("Goodbye! Come back soon.",)),)
SMALL_TALK = GREETINGS + QUESTIONS_TO_ME + REMARKS + THANKS + GOODBYES

# Questions about an earlier story of a conversation, and their answers with * for its hero.
FIRST_STORY = (
    ("Who was the first story about?", "Who was the hero of the first story?"),
    ("The first story was about *.", "It was about *."),
)
STORY_BEFORE = (
    ("Who was the story before the last one about?", "Who was the story before this one about?"),
    ("It was about *.", "The story before was about *."),
)
