"""Hold the words, phrases, plots and facts of ``world`` as data.

A plot is a block of ``PLOTS``: a head line (name # hero # weather # subject), then ``LET`` lines (values that are drawn
once), then ``Q`` lines (question ; variant # answer with * for the value # right value # pool of wrong values), then its
beats. A beat is a paragraph of wordings, one of which is used. Flags before a beat mean: ``?`` may be left out, ``p`` begins
a paragraph, ``=a`` belongs to outcome a. A pool is a name known to ``world`` or a list of values.
"""

# ruff: noqa: E501 (each beat is on one line)
from __future__ import annotations

GIRLS = (
    "Lily", "Anna", "Mia", "Sara", "Emma", "Zoe", "Lucy", "Ella", "Nora", "Amy", "Molly", "Ruby", "Jane", "Kate",
    "Maria", "Tina", "Sue", "Lena", "Clara", "Eva", "Maya", "Nina", "Alice", "Julia", "Sophie", "Hannah", "Leah",
    "Rita", "Betty", "Polly", "Grace", "Ida", "Vera", "Olive", "Rose", "Daisy", "Ivy", "Martha", "Helen", "Greta",
    "Flora", "June", "Pearl", "Stella", "Tess", "Wendy", "Bonnie", "Carla", "Dora", "Edith", "Fiona", "Gina",
    "Hazel", "Irene", "Joy", "Katie", "Laura", "Megan", "Naomi", "Paula",
)  # fmt: skip
BOYS = (
    "Tom", "Ben", "Max", "Tim", "Sam", "Leo", "Jack", "Noah", "Finn", "Adam", "Luke", "Peter", "Oscar", "Henry",
    "Danny", "Paul", "Eli", "Hugo", "Jake", "David", "Theo", "Billy", "Carl", "Owen", "Toby", "Simon", "Alex",
    "Ryan", "Felix", "Ned", "Arthur", "Bruno", "Caleb", "Dan", "Emil", "Frank", "George", "Harry", "Ivan", "Jonas",
    "Kevin", "Liam", "Mark", "Nick", "Otto", "Phil", "Ralph", "Steve", "Ted", "Victor", "Walter", "Willy", "Andy",
    "Bobby", "Conrad", "Dylan", "Edgar", "Fred", "Gus", "Louis",
)  # fmt: skip
ANIMAL_NAMES = (
    "Pip", "Bobo", "Coco", "Momo", "Nibbles", "Fluffy", "Rusty", "Biscuit", "Waffles", "Ziggy", "Toto", "Poppy",
    "Bella", "Rocky", "Whiskers", "Dot", "Tumble", "Mopsy", "Fuzzy", "Kiki", "Jojo", "Bingo", "Bumble", "Nutmeg",
    "Pickle", "Muffin", "Scout", "Tilly", "Zuzu", "Bouncer", "Patches", "Snowy", "Ginger", "Pepper", "Socks",
    "Button", "Hoppy", "Sniffy", "Tiny", "Mimi", "Lulu", "Fifi", "Koko", "Bubbles", "Cookie", "Maple", "Acorn",
    "Clover", "Dusty", "Sunny", "Berry", "Cocoa", "Honey", "Jumpy", "Twig",
)  # fmt: skip
HERO_ANIMALS = (
    "bunny", "bear", "mouse", "fox", "duck", "frog", "squirrel", "hedgehog", "turtle", "pig", "cat", "dog", "lamb",
    "beaver", "owl", "raccoon", "goat", "mole", "rabbit", "goose", "pony", "lion", "monkey", "elephant", "penguin", "tiger",
)  # fmt: skip
WILD_ANIMALS = (
    "bird", "kitten", "puppy", "rabbit", "squirrel", "duckling", "hedgehog", "lamb", "mouse", "turtle", "chick",
    "frog",
)  # fmt: skip
HERO_WORDS = (
    "brave", "busy", "calm", "careful", "careless", "caring", "cheeky", "cheerful", "clever", "curious", "dreamy",
    "eager", "fast", "fearful", "forgetful", "friendly", "funny", "gentle", "helpful", "loyal", "hungry", "jolly",
    "kind", "little", "lively", "lonely", "lucky", "merry", "nervous", "noisy", "patient", "playful", "polite",
    "proud", "quiet", "restless", "selfish", "shy", "skillful", "sleepy", "sporty", "strong", "stubborn", "sweet",
    "tender", "wild", "small", "young",
)  # fmt: skip
# Words that describe the hero of most stories of a plot, by plot, so that the opening sentence suggests the story.
SUITED: dict[str, tuple[str, ...]] = {
    "lost toy": ("careless", "dreamy"),
    "one toy for two": ("lucky", "selfish"),
    "helping with a heavy load": ("strong", "helpful"),
    "a fear": ("shy", "fearful"),
    "a quarrel": ("proud", "stubborn"),
    "building": ("clever", "busy"),
    "a trick": ("cheeky", "funny"),
    "a surprise party": ("cheerful", "lonely"),
    "a storm": ("nervous", "quiet"),
    "a hurt animal": ("kind", "gentle"),
    "learning a skill": ("patient", "eager"),
    "a promise": ("forgetful", "loyal"),
    "a race": ("fast", "sporty"),
    "a garden": ("calm", "careful"),
    "a trip": ("lively", "restless"),
    "bedtime": ("sleepy", "little"),
    "cooking": ("hungry", "sweet"),
    "a new friend": ("friendly", "polite"),
    "a contest": ("skillful", "merry"),
    "the truth": ("wild", "noisy"),
    "a snowy day": ("playful", "jolly"),
    "a treasure map": ("curious", "brave"),
    "a lost little animal": ("caring", "tender"),
}
GROWN_UPS = (
    ("Mom", "mom", "f"), ("Mom", "mother", "f"), ("Dad", "dad", "m"), ("Dad", "father", "m"),
    ("Grandma", "grandma", "f"), ("Grandpa", "grandpa", "m"), ("Aunt Jenny", "aunt", "f"), ("Uncle Joe", "uncle", "m"),
)  # fmt: skip
NEIGHBOURS = (
    ("Mrs. Hill", "f"), ("Mr. Wood", "m"), ("Miss Bell", "f"), ("Mr. Fisher", "m"), ("Mrs. Baker", "f"),
    ("Mr. Parker", "m"), ("Mrs. Potter", "f"), ("Old Mr. Stone", "m"), ("Miss Field", "f"), ("Mr. Lee", "m"),
)  # fmt: skip
COLORS = ("red", "blue", "green", "yellow", "pink", "purple", "orange", "white", "black", "brown", "gray", "golden")
SIZES = ("big", "small", "tiny", "little", "nice", "fine", "pretty", "neat", "cute", "lovely", "simple", "beautiful")
_TOY = ("wood", "plastic", "paper")
THINGS = (
    ("ball", ("rubber", "cloth", "plastic")), ("kite", ("paper", "silk")), ("doll", ("cloth", "wood")),
    ("truck", ("wood", "metal")), ("toy boat", _TOY), ("drum", ("wood", "metal")), ("hat", ("wool", "straw")),
    ("scarf", ("wool", "silk")), ("teddy bear", ("cloth", "wool")), ("toy train", ("wood", "metal")),
    ("bucket", ("metal", "plastic")), ("cup", ("metal", "glass", "wood")), ("ribbon", ("silk", "paper")),
    ("blanket", ("wool", "cloth")), ("toy car", ("metal", "plastic")), ("whistle", ("metal", "wood")),
    ("bag", ("cloth", "leather")), ("bell", ("metal", "glass")), ("flute", ("wood", "metal")),
    ("necklace", ("glass", "metal")), ("mitten", ("wool", "leather")), ("sock", ("wool", "cloth")),
    ("paintbrush", ("wood", "plastic")), ("button", ("wood", "metal", "glass")), ("box", ("wood", "paper", "metal")),
    ("puppet", ("cloth", "wood")), ("lantern", ("paper", "metal")), ("basket", ("straw", "wood")),
    ("toy robot", ("metal", "plastic")), ("top", ("wood", "metal")), ("marble", ("glass", "wood")),
    ("toy plane", _TOY), ("jump rope", ("cloth", "plastic")), ("spoon", ("wood", "metal")),
    ("pillow", ("cloth", "silk")), ("toy horse", ("wood", "cloth")),
)  # fmt: skip
PLACES = (
    ("at the park", "the park"), ("in the forest", "the forest"), ("by the lake", "the lake"),
    ("by the river", "the river"), ("on the hill", "the hill"), ("at the playground", "the playground"),
    ("in the garden", "the garden"), ("at the farm", "the farm"), ("in the meadow", "the meadow"),
    ("by the pond", "the pond"), ("on the beach", "the beach"), ("at the market", "the market"),
    ("in the village", "the village"), ("near the bridge", "the bridge"), ("behind the school", "the school"),
    ("by the old mill", "the old mill"),
)  # fmt: skip
SPOTS = (
    ("under a bush", "a bush"), ("behind a big rock", "a big rock"), ("under the bench", "the bench"),
    ("in the tall grass", "the tall grass"), ("beside the fence", "the fence"), ("in a pile of leaves", "a pile of leaves"),
    ("behind the shed", "the shed"), ("next to the gate", "the gate"), ("under a tall tree", "a tall tree"),
    ("behind the barn", "the barn"), ("behind a wall", "a wall"), ("between two flower pots", "two flower pots"),
    ("inside a hollow log", "a hollow log"), ("near the well", "the well"),
)  # fmt: skip
INDOOR_SPOTS = (
    ("under the bed", "the bed"), ("behind the couch", "the couch"), ("on the shelf", "the shelf"),
    ("in the closet", "the closet"), ("under the table", "the table"), ("behind the door", "the door"),
    ("in the kitchen", "the kitchen"), ("beside the window", "the window"), ("in the drawer", "the drawer"),
    ("on the stairs", "the stairs"), ("beside the stove", "the stove"), ("under a chair", "a chair"),
)  # fmt: skip
TREATS = (
    "apples", "cookies", "berries", "nuts", "carrots", "cherries", "muffins", "pears", "plums", "grapes", "buns",
    "pancakes", "peaches", "strawberries",
)  # fmt: skip
NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
SEASONS = ("spring", "summer", "autumn", "winter")
FEELINGS = ("happy", "sad", "angry", "scared", "tired", "proud", "bored", "surprised")
WEATHER = {
    "dry": ("sunny", "windy", "cloudy", "warm", "cool", "bright", "hot", "fine"),
    "sunny": ("sunny", "warm", "bright", "hot", "fine"),
    "morning": ("sunny", "warm", "bright", "cool", "fine"),
    "spring": ("sunny", "warm", "bright", "cool", "fine"),
    "windy": ("windy",),
    "rain": ("rainy",),
    "snow": ("snowy",),
    "night": ("cold", "cool", "warm", "clear", "mild"),
}
WRONG_WEATHER = ("rainy", "snowy", "foggy", "stormy")
NOT_RAINY = ("snowy", "foggy", "sunny")
_LIGHT = ("morning", "afternoon")
TIMES = {
    "dry": _LIGHT, "sunny": _LIGHT, "morning": ("morning",), "spring": _LIGHT, "windy": _LIGHT, "rain": _LIGHT,
    "snow": _LIGHT, "night": ("evening", "night"),
}  # fmt: skip
WEATHER_SEASON = {"spring": "spring", "snow": "winter"}  # any other kind of weather suits spring, summer and autumn
WHEN = (
    "one [w] [w.time],", "on a [w] [w.time],", "one [w.time],", "one [w] [w.day] [w.time],",
    "early one [w] [w.time],", "late one [w] [w.time],", "on [w.day],", "last [w.day],", "one day,",
    "it was a [w] [w.time], and", "it was [w.day], and", "on the first day of {[w.season]|the holidays},",
    "when [w.day] came,", "one [w.day] after {breakfast|a big breakfast|a long sleep},", "that [w.day],",
    "this [w.time] was [w], and",
    "it was {[w.season]|the end of the week}, and", "not long ago, on a [w] [w.time],",
)  # fmt: skip

PHRASES = {
    "said": ("said", "said kindly", "said softly", "said with a smile", "said", "said gently"),
    "cried": ("cried", "shouted", "called", "yelled"),
    "asked": ("asked", "asked softly", "asked", "wanted to know", "asked in a small voice"),
    "happy": ("happy", "very glad", "full of joy", "so happy", "all smiles", "as happy as could be", "delighted"),
    "sad": ("sad", "very sad", "upset", "close to tears", "unhappy", "so sad"),
    "soon": (
        "soon",
        "after a while,",
        "before long,",
        "a little later,",
        "in a short time,",
        "by and by,",
        "soon after,",
    ),
    "then": ("then", "after that,", "a moment later,", "just then,", "a little later,"),
    "suddenly": ("suddenly", "all at once", "all of a sudden"),
    "good": ("good", "nice", "lovely", "fine", "wonderful", "great"),
    "ran": ("ran", "hurried", "rushed", "dashed", "raced"),
    "big": ("big", "huge", "very big", "great big", "giant"),
    "laughed": ("laughed", "giggled", "laughed out loud", "burst out laughing", "smiled", "grinned"),
    "liked": ("liked", "loved", "enjoyed"),
    "looked": ("looked", "searched", "hunted", "peeked"),
}

FRIEND_CHILD = (
    "[h.his] friend [f]", "[h.his] best friend [f]", "a [f.adj] [f.kind] named [f]", "[f] from next door",
    "[h.his] cousin [f]", "[f], a [f.kind] from school,", "[h.his] good friend [f]", "a [f.kind] called [f]",
    "[h.his] neighbor [f]", "[h.his] playmate [f]",
)  # fmt: skip
FRIEND_ANIMAL = (
    "[h.his] friend [f] the [f.kind]", "a [f.adj] [f.kind] named [f]", "a [f.kind] called [f]", "[f] the [f.kind]",
    "[h.his] best friend, [f] the [f.kind],", "[f], the [f.adj] [f.kind],", "[h.his] neighbor, a [f.kind] named [f],",
)  # fmt: skip

ONCE = (
    "once upon a time, there was a [h.adj] [h.kind] named [h].",
    "once upon a time, there lived a [h.adj] [h.kind] called [h].",
    "once upon a time, a [h.adj] [h.kind] named [h] lived {near|close to|not far from} [p3].",
    "once upon a time, there was a [h.kind] named [h]. [h] was very [h.adj].",
    "once upon a time, a [h.kind] called [h] woke up {early|late|with a smile}. {All the neighbors said that [h] was [h.adj]|Everybody knew how [h.adj] [h] was}.",
)  # fmt: skip
OPENINGS = (
    "[h] was a [h.adj] [h.kind] who lived {near|close to|beside|not far from} [p3].",
    "[h] was a [h.adj] [h.kind].",
    "[h], a [h.adj] [h.kind], lived {near|close to|beside} [p3].",
    "there was a [h.adj] [h.kind] named [h].",
    "there once was a [h.kind] named [h], who was {very|rather|quite} [h.adj].",
    "a [h.adj] [h.kind] named [h] lived with [h.his] family {near|close to|beside} [p3].",
    "this is {a story about|the story of|a tale about} [h], a [h.adj] [h.kind].",
    "everyone {near|around|close to} [p3] knew [h], the [h.adj] [h.kind].",
    "do you know [h]? [h.He] is a [h.adj] [h.kind], and this is [h.his] story.",
    "long ago, a [h.adj] [h.kind] named [h] lived {near|by|beside} [p3].",
    "not far from [p3] lived [h], a [h.adj] [h.kind].",
    "let me tell you about [h]. [h.He] was a [h.adj] [h.kind].",
)  # fmt: skip
HOBBIES = (
    "[h.he] liked to {sing|dance|draw|climb|read|jump|run|paint} and to {look at the clouds|count the stars|tell jokes|collect stones|play outside|help at home|listen to stories|splash in puddles}.",
    "[h.he] loved {sweet [d]|picture books|long walks|funny songs|warm soup|bedtime stories|puzzles|the smell of flowers} more than {anything|most things|almost anything else}.",
    "every {morning|day|evening}, [h.he] {sang a little song|looked out of the window|fed the birds|drank a cup of milk|said hello to the sun|brushed [h.his] hair}.",
    "[h.his] favorite color was [c].",
    "[h.he] had {bright eyes|a loud laugh|a warm smile|big dreams|quick feet|a lot of ideas}, and {people smiled when they saw [h.him]|everybody liked to be near [h.him]|it was nice to have [h.him] around|that made people happy|all the neighbors knew it}.",
    "most of all, [h.he] {liked|loved|enjoyed} {playing games|making things|being outside|meeting friends|learning new things|going on little trips}.",
)  # fmt: skip
ENDINGS = (
    "from that day on, [h] {never forgot it|was a little wiser|smiled whenever [h.he] thought of it|felt a bit braver|told the story to everyone}.",
    "that night, [h] {fell asleep with a smile|slept well|dreamed about it all|told the moon about [h.his] day|was too happy to sleep}.",
    "it had been a {good|long|strange|wonderful|lovely|busy} day {for [h]|after all|from start to end}.",
    "and {that is how the story ends|that was that|so the day ended well|everyone was smiling}.",
    "[h] {could not wait for the next day|wanted to remember this day forever|hoped that every day would be like this one|hummed a happy tune|went to bed early and slept like a log}.",
    "at dinner, [h] told {the whole family|everyone at the table|everybody} {all about it|everything|the story twice|what had happened}.",
    "what a {day|wonderful day|funny day|lovely story to tell}!",
    "{the sun went down|evening came|it got dark}, and {the sky turned pink|the stars came out|the birds grew quiet|the lights went on in the houses}.",
    "later, [h] {drew a picture of it|made up a song about it|wrote it all down|told it to [h.his] toys}.",
    "and [h] {smiled for the rest of the day|laughed about it for a week|was proud of [h.self]|had learned something new}.",
    "{so|in the end,} it {turned out better|became nicer|was better} than {[h] had hoped|anyone had thought}.",
    '"{Today was good|This was a fine day|I will remember this|I like days like this}," [h] {thought|whispered} before {sleep came|the light went out|closing [h.his] eyes}.',
)  # fmt: skip
# Endings of stories that end in bed.
NIGHT_ENDINGS = (
    "from that night on, [h] {was a little wiser|smiled whenever [h.he] thought of it|felt a bit braver}.",
    "it had been a {good|strange|wonderful|busy} night {for [h]|after all|from start to end}.",
    "and {that is how the story ends|that was that|so the night ended well}.",
    "what a {night|funny night|lovely story to tell}!",
    "in the morning, [h] {told everyone about it|drew a picture of it|made up a song about it|laughed about it all}.",
)  # fmt: skip

ASKS = (
    (("Who is the story about?", "Who is this story about?"), ("It is about *.", "The story is about *."), "[h]", "stranger"),
    (("What was [h]?", "Who was [h]?"), ("[h] was *.",), "a [h.kind]", "kind"),
    (("What was the weather like?", "How was the weather?"), ("It was *.", "The weather was *."), "[w]", "wrong_weather"),
    (("What day was it?", "On what day did it happen?"), ("It was *.", "It happened on a *."), "[w.day]", "day"),
    (("What was the name of the [h.kind]?",), ("The name of the [h.kind] was *.", "[h.his] name was *."), "[h]", "stranger"),
)  # fmt: skip
# Forms that tell the weather; its word alone may describe something else, such as warm milk.
WEATHER_TOLD = ("[w] [w.time]", "[w] [w.day]", "[w.time] was [w]", "snowy day")
# Questions that few stories answer, and words that occur in a story that might answer them.
UNTOLD = (
    (("How old was [h]?", "What was [h]'s age?"), (" years ", " birthday ", " old ")),
    (("What was [h]'s favorite color?", "Which color did [h] like best?"), (" favorite color ",)),
    (("What was the name of [h]'s dog?", "What was the name of [h]'s teacher?", "What was the name of [h]'s pet?"), (" dog ", " teacher ", " pet ", " it have a name ", " shall we call it ")),
    (("What did [h] have for breakfast?", "What did [h] eat for breakfast?"), (" breakfast ", " cup of milk ")),
    (("How many brothers did [h] have?", "Did [h] have a sister?"), (" brother ", " sister ", " brothers ")),
    (("What color were [h]'s shoes?", "What color was [h]'s coat?"), (" shoes ", " coat ", " shoe ")),
    (("In what town did [h] live?", "In which year did it happen?"), (" town ", " year ")),
)  # fmt: skip
PLOTS = r"""
PLOT lost toy # any # dry # [t.a]
Q: What color was the [t]? ; What was the color of the [t]? # It was *. ; The [t] was *. # [t.color] # color
Q: What was the [t] made of? # It was made of *. ; *. # [t.mat] # material
Q=a: Where was the [t] in the end? ; Where did they find the [t]? # It was *. ; They found it *. # [s.at] # spot
Q=b: Where was the [t] in the end? # It was *. # [s.at] # spot
Q=a: Who found the [t]? # * found it. ; It was *. # [f] # who
Q: What did [h] lose? # [h] lost *. ; *. # the [t] # the [u] / the {shoe|key} / the {cookie|lamp} / the {pencil|spade}
Q=c: Who had taken the [t]? # * had it. ; It was *. # a [a] # animal

[h] had [t.a] {made of|that was made of} [t.mat]. {It was [h.his] favorite thing|[h.He] took it everywhere|It had been a gift from [h.his] [g.kin]|Nothing was dearer to [h.him]}.
[h]'s [g.kin] had given [h.him] [t.a]. It was made of [t.mat], and [h] {loved it|kept it close|never went out without it|thought it was the best in the world}.
of all [h.his] things, [h] <liked> [t.a] the most. {Somebody had made it of [t.mat]|It was made of [t.mat]}{, and it felt nice to touch|, with care|}.
[h] owned [t.a] made of [t.mat]. {At night it lay beside [h.his] bed|By day it was always with [h.him]|It was not new, but [h.he] loved it}.
there was one thing that [h] loved: [t.a] made of [t.mat]. {[g] had bought it at a fair|It came from [g]|It was a present}.

@p
[w.when] [h] {could not find it|looked for it, and it was not there|wanted to play with it, but it was gone|saw that it was missing}. {Where could it be?|Oh no!|How could that be?|It had been there the day before!}
[w.when] [h] took it to [p]. {On the way back|When it was time to go|Later}, {[h.his] hands were empty|it was gone|it was nowhere to be seen}.
[w.when] [h] played [p.at] until [h.he] was tired. {Then|Back home,} [h.he] {looked down|looked into [h.his] bag}. The [t] {was gone|was not there}!
[w.when] something was wrong. The [t] was {not in its place|gone|missing}, and [h] {did not know why|had no idea where to look|stood still in fright}.

@?
"{Where is my [t]|Who has seen my [t]|Has anyone seen my [t]}?" [h] <cried>. {No one knew.|Nobody answered.|It was very quiet.}
[h] felt <sad>. {A tear ran down [h.his] cheek.|[h.His] heart was heavy.|[h.He] sat down and sighed.|There was a lump in [h.his] throat.}
[h.he] {turned|went} {red|pale}. "{I must find it|It cannot be far|I had it in my hands}," [h.he] said{ to [h.self]|}.

[h.he] <looked> [s2.at] and [s3.at], but {found nothing|there was only dust|all [h.he] found was an old {shoe|leaf|coin|stick}}.
first, [h.he] <looked> [s2.at]. {Nothing!|It was not there.} Then [h.he] tried [s3.at]. {Nothing again!|Only a {beetle|snail|feather} sat there.|Still no luck.}
was it [s2.at]? No. Was it [s3.at]? No, {not there either|it was not}.

<then> [f.intro] came by. "{What is wrong|Why are you crying|Why do you look so sad|Did you lose something}?" [f] <asked>. [h] {told [f.him] everything|explained it all|pointed at the empty place and told the story}.
<then> [h] met [f.intro] {on the path|at the gate|on the way}. "{Can I help you look?|Shall we look together?|Two can see more than one,}" [f] <said>{, and took [h.his] hand|}.
[f.intro] heard about it and <ran> over. "{Do not worry|Do not be sad|Cheer up}, {we will find it|I will help you|four eyes see more than two}!"

@p=a
together they went to [p], where [h] {often played|liked to play}. They {looked high and low|turned over every stone|walked slowly, step by step}. <suddenly>, [f] {stopped|pointed|gave a shout}. "{I see something!|Look there!|What is that?}" The [t.color] thing {lay|was} [s.at].
"{Where did you sit?|Where were you last?|Think back,}" said [f]. [h] {thought and thought|closed [h.his] eyes}. "[p.At]!" They <ran> there, and [f] {spotted|found|saw} the [t] [s.at].

@p=b
"{Let us think|Let us be clever about this}," [f] said. [h] {shut [h.his] eyes and thought back|thought about the whole day}. <then> [h.he] remembered! [h.He] had put it down [s.at]{ to tie [h.his] shoe| to watch a butterfly| because [h.his] arms were full}. And there it was!
[h] and [f] {walked|went} to [p], where [h] {often played|liked to play}. <soon> [h] saw something {[t.color]|shiny and [t.color]} [s.at]. It was the [t], {a little dirty but whole|just as good as before|wet but safe}!

@p=c
<suddenly> they heard a small noise [s.at]. {There sat|They saw} a [a.size] [a], {and under it lay|and it was holding on to} the [t]! {It was cold and had no mother|It had no toy of its own|It looked so lonely}.
<soon> [f] found {small tracks|tiny footprints} in the {mud|sand|dirt}. They {led|went} right to a [a.size] [a] [s.at]. It was {asleep on|curled up with|playing with} the [t]!

@=a
[h] {jumped for joy|hugged [f] tight|clapped [h.his] hands}. "Thank you! {You are a true friend|You have such sharp eyes|I could not have done it alone}!"
"Thank you, thank you!" [h] <cried>. [h.He] {gave [f] {two|three} [d]|let [f] hold it all the way home|shared [h.his] [d] with [f]}.

@=b
[h] {laughed and held it up high|pressed it to [h.his] chest|danced around it}. "{Next time I will take better care|Now I know: always put things back|I will never leave it behind again}!" [h.he] said.
"{Here you are|I am so glad|There you are at last}!" [h] <cried>. [f] {was glad too|clapped|laughed with [h.him]}, and they {ate some [d]|played until supper|walked home side by side}.

@=c
[h] {thought for a moment|looked at it for a long time}. "{You may keep it|You need it more than I do}," [h.he] <said>. The [a] {made a happy sound|closed its eyes|cuddled up}, and [h] did not feel sad anymore.
"{Let it have the [t]|It needs something soft and dear}," [h] told [f]. {Giving it away|That} felt {strange, but good|better than [h.he] had thought}. [f] said, "{You have a big heart|That was kind of you}."

PLOT one toy for two # any # dry # [t.a]
Q: What color was the [t]? # It was *. ; The [t] was *. # [t.color] # color
Q: Who wanted to play with the [t] too? ; Who asked [h] for the [t]? # * did. ; It was *. # [f] # stranger
Q: Where did [h] play with the [t]? ; Where was [h] with the [t]? # [h] was *. ; *. # [p.at] # place
Q=b: Why did [h] feel lonely? # Because [h.he] *. # did not share # was lost / was sick / had no toys / was hungry

@p
[w.when] [h] took [h.his] [t.color] [t] {outside|along} and played with it [p.at].
[w.when] [h] got {[t.a] from [h.his] [g.kin]|[t.a] as a present|[t.a] for being good}. [h.He] {carried|took} it to [p] {at once|and played}.
[w.when] [h] sat [p.at] with [t.a]. {It was brand new|[g] had made it|It was the best toy ever}, and {everyone looked at it|[h] was proud of it}.

[f.intro] came along and {watched|stopped|stood near}. "{May I have a turn|Can I play with it too|May I hold it for a bit|Can I try it}?" [f] <asked>.
<soon> [f.intro] {came|walked|skipped} up. "{That looks like fun|What a <good> [t]}! {Can we share it?|May I play too?|Please let me try!}" [f.he] {begged|said|pleaded}.
[f.intro] had no toy {that day|to play with}. [f.He] {looked at the [t] with wide eyes|came closer and closer}. "Please, {can I play with you|may I try it once}?"

@=a
[h] {thought about it|did not answer at once|bit [h.his] lip}. {It was so new! What if it broke?|[h.He] wanted to keep it.|Sharing was hard.} {But [f] looked so hopeful|Then [h.he] remembered how it felt to have nothing}.
at first, [h] {held it tight|wanted to say no}. {But it is no fun to play alone|But a game for two is better than a game for one}, [h.he] thought.

@=a
"{All right|Yes|Sure}, {you can have it first|we can take turns|let us play together}," [h] <said>. [f]'s face {lit up|turned bright}.
[h] {held it out|put it into [f]'s hands}. "{Here|Take it}! {You go first, then me|Ten minutes for you and ten for me}."

@=b
"No! It is mine!" [h] <cried> and {held it behind [h.his] back|turned away|ran off with it}. [f] {went away with a sad face|walked off slowly|looked at the ground and left}.
[h] shook [h.his] head. "{I do not want to|Get your own|You might break it}," [h.he] said. [f]'s {smile went away|eyes filled with tears}, and [f.he] {left|went home}.

@=b
{then|after that,} [h] played {alone|all by [h.self]}. {It was not much fun.|But who would catch it, who would laugh?} [h.He] {did not share, and now [h.he] was lonely|had not wanted to share, and now nobody was there}.
for a while [h] {was pleased|enjoyed it}. But {the game got boring|the day grew long}. Because [h.he] did not share, [h.he] {had no one to laugh with|was all alone}.

@p=b
[g] {saw it|sat down beside [h.him]|came by}. "{A toy is only a toy, but a friend is a friend,|What is more fun, a toy or a friend?|Things are nicer when we share them,}" [g] said{ gently|}.
"{Why are you so quiet|Why so glum}?" [h.his] [g.kin] <asked>. [h] told the truth. "{You know what to do|It is not too late}," said [g].

@=b
[h] <ran> {to [f]'s house|after [f]}. "{I am sorry|I was mean}. {Please come back and play with me|You can have the first turn}!" [f] {smiled|nodded|was not angry anymore}.
[h] found [f] [p2.at]. "{Sorry|I was wrong}," [h.he] said and {gave [f.him] the toy|held out the [t]}. "{Let us share|It is for both of us}."

@p
<soon> they {made up a new game|had invented three new games|were both laughing}. {One threw and one caught|One sang while the other danced|They pretended to be {pirates|kings|travelers|bakers}|They counted each turn out loud}.
together they {found out much more to do with it|played until it was late|thought of things that [h] had never tried alone}. {How they laughed!|Time flew.|Nobody was left out.}
the two friends {played for hours|did not stop until dinner}. [f] {showed [h] a trick|had the best ideas|made [h] laugh so hard that [h.his] tummy hurt}.

@?
afterwards [f] {shared [f.his] [d]|brought some [d] from home|gave [h] half of [f.his] [d]}. {They tasted sweet|Nothing ever tasted better|They ate them on the grass}.
"{Tomorrow I will bring my [u]|I have a [u.color] [u] at home}," [f] said. "{Then you can play with that|We can share that too}!"

{Sharing had made the fun twice as big|A shared toy is twice the fun|[h] had lost nothing by sharing and had won a friend|"Sharing is fun," said [h], and [h.he] meant it}.
[h] learned that {a friend is worth more than any toy|games are better with two|giving can feel as good as getting}.
"{I am glad that we shared|Playing with you is the best}," [h] told [f], {and [f] gave [h.him] a hug|and it was true}.

PLOT helping with a heavy load # any # dry # [e]
LET x y: pears ~ a bag / plums ~ a bag / carrots ~ a bag / nuts ~ a bag / wood ~ a cart / books ~ a box / potatoes ~ a sack / flowers ~ a tray / apples ~ a basket / onions ~ a basket / turnips ~ a bucket
Q: Who needed help? ; Whom did [h] help? # It was *. ; *. # [e] # stranger
Q: What did [e] carry? ; What was in the load of [e]? # [e] carried *. ; *. # [x] # stones / toys / hats / shoes / fish
Q: Where did [h] meet [e]? # They met *. ; *. # [p.at] # place
Q=a: What did [h] get as thanks? # [h] got *. ; *. # [t.a] # [u.a] / a {lamp|chair} / a {coat|cake} / a {pen|rug}
Q=b: Who came to help, too? # It was *. # [f] # who

@p
[w.when] [h] was {on the way to|walking to|going home from} [p] when [h.he] {saw|met} [e]. [e] had [y] full of [x].
[w.when] [h] {saw|noticed} [e] [p.at]. [e.He] was carrying [y] full of [x], and it {looked very heavy|was much too heavy}.
[w.when] [e] came {slowly|puffing} along the road with [y] full of [x]. [h], who was playing [p.at], {looked up|watched}.

{[e] had to stop and rest at every corner|[e.His] back hurt, and [e.he] walked very slowly|[e.He] was out of breath}.
"Oh dear, {my poor arms|my back|this is too much for me}," [e.he] {sighed|groaned|said}.
every few steps, [e] {stopped|had to rest|wiped [e.his] face}.

@?
<suddenly> {something tore|[e.he] slipped|there was a loud crack}. {Out|Down} {fell|came} the [x], {all over the road|and some landed in the grass|left and right}!
a gust of wind {came|blew}, [e.he] {slipped|lost [e.his] step}, and the [x] {ended up on the ground|spilled on the road}.

[h] {wanted to play|was in a hurry|had other plans}, but {[h.he] could not just walk by|[e] looked so tired|helping came first}. "{Can I help you?|May I carry some?|Let me help!}" [h.he] <asked>.
"{Wait|Stop}! {I will help you|Let me carry some of it|I have two strong arms}!" [h] <cried> and <ran> over.
{"Good day, [e]! Do you need a hand?"|"That looks heavy! May I help?"} {asked|said} [h]. "{Oh, that would be kind|Yes, please|You are an angel}," said [e].

@=a
they {shared|split} the load. [h] {took one side and [e] took the other|made two small bundles out of one big one}. {Step by step|Slowly|Bit by bit}, they {went up the road|came closer to the house}.
[h] {carried half of it|pulled while [e] pushed|picked up one thing after another}. {It was hard work|[h.His] arms got tired|Sweat ran down [h.his] nose}, but [h.he] did not {give up|stop|complain}.

@=b
but even for two it was {too much|too heavy}. <then> [f.intro] came by. "{Three can do it|Make room for me|I am strong, too}!" said [f], and {took a corner|grabbed hold|lifted one side}.
[h] pulled and pulled, but {it would not move|it was no good}. "{Can nobody help us|Is anybody there}?" [h.he] <cried>. [f.intro] {heard it and|} <ran> over, and {with three it was easy|all at once it felt light}.

@?
on the way, [e] {told funny stories about the old days|sang an old song|showed [h] where the {owls|foxes|bees} live|told a joke about a {goose|cow|king}}.
they {talked and laughed|counted the steps|rested {once|twice}} {on the way|before they got there}.

@p
at [e]'s {house|door|little gate}, {everything was put down with a bump|they were all tired but happy|the work was done}. "{You have saved my day!|What would I have done without you?|Thank you with all my heart!}" said [e].
<soon> they {were there|stood in front of [e]'s house}. [e] {was <happy>|shook [h.his] hand|smiled from ear to ear}. "{You are a good helper|How kind you are|You have a good heart}!"

@=a
[e.he] {went inside|opened an old chest} and came back with [t.a]. "{This is for you|It waited for somebody like you|Take it, please}," [e.he] said. [h] {could hardly believe it|said thank you three times|held it with both hands}.
then [h] got {something special|a gift}: [t.a]! "{I did not help for a gift|I did not ask for anything}," [h] said. "{I know|That is why I want you to have it}," {answered|replied} [e].

@=b
[e] gave them {warm|fresh} {bread|cake|pie} with {butter|honey|jam}. {[f] ate two pieces|[h] and [f] ate until they were full|It smelled so good}.
they all sat {at the table|on the steps} and {drank cold milk|ate [n] pieces of cake|had a cup of tea}. "{Many hands make light work|Work is easy when friends help}," [e] <said>.

@?
at home, [h.his] [g.kin] {had heard about it|asked where [h.he] had been}. "{I am proud of you|That was good of you}," said [g].
{Helping had felt good|[h] felt warm inside|It was nice to be needed}. [h.He] {made up [h.his] mind to help again|hoped to find somebody else to help}.

PLOT a fear # any # dry # [x]
LET x y z: the tall slide ~ climbed up and slid down ~ high / the deep water ~ jumped in and swam ~ deep / the old bridge ~ walked across ~ long and shaky / the dark cave ~ went inside ~ dark / the big swing ~ sat down and flew up into the air ~ fast / the tall ladder ~ climbed to the top ~ high / the big dog of the neighbors ~ went up and petted it ~ loud / the steep hill ~ rolled down the grass ~ steep
Q: What was [h] afraid of? ; What scared [h]? # [h] was afraid of *. ; *. # [x] # the {rain|snow} / the {moon|night} / the {mouse|spider} / the {bus|train}
Q: Who helped [h] to be brave? # It was *. ; * did. # [f] # who
Q: Why was [h] afraid? # Because it was so *. ; It was too * for [h.him]. # [z] # small and pink / cold and wet / old and dirty / soft and warm
Q: How did [h] feel in the end? # [h] felt *. # proud and glad # angry and mean / sad and alone / sick and cold / bored and tired

@p
{There was one thing that [h] did not like|But [h] had a secret|Only one thing was hard for [h]}: [h.he] was afraid of [x]. {It was so [z]!|To [h.him], it looked so [z].}
[h] was {good at many things|not afraid of much}, but [x] {scared [h.him]|made [h.him] shake|was too much for [h.him]}. It was so [z]{, and [h] felt so small|}!
everybody {loved|talked about} [x]. Not [h]! {It was so [z] that|It looked so [z] that} [h.his] knees {shook|went soft} when [h.he] {came near|only looked at it}.

[w.when] [f.intro] wanted to go there. "{Come with me|Come on, it is fun|Let us try it together}!" said [f]. [h]'s {heart beat fast|tummy felt funny|hands got cold}.
[w.when] all the others {had fun|laughed and played} there. [f.intro] {waved and called: |called: |waved. }"{Come here, [h]!|Where are you, [h]?|Join us, [h]!}" But [h] {hid [s.at]|did not move|shook [h.his] head}.
[w.when] [h] and [f.intro] {came close to it|stood right in front of it}. {[h] wanted to turn back|[h] could not take one more step}.

@?
"{I cannot,|I do not want to,|Maybe tomorrow?}" {whispered|said} [h]. {[h.His] voice was very small.|[h.He] looked at [h.his] feet.|A tear was in [h.his] eye.}
some {others|bigger ones} {laughed|made fun of [h.him]}. "{Scaredy cat|Look who is afraid}!" they <cried>. {That hurt.|[h] wanted to run home.}

but [f] did not laugh. "{I was afraid of it, too|Last year I cried when I saw it|Everyone is afraid of something}," [f] <said>. "{I will stay with you|Hold my hand|We can go slowly}."
[f] {put an arm around [h.him]|sat down next to [h.him]|took [h.his] hand}. "{Being brave means to be scared and to try|You can stop whenever you want|Small steps are steps, too}," [f.he] said.

@?
[h] {took a deep breath|counted to [n]|closed [h.his] eyes and opened them again}.
[h.he] {held [h.his] [t.color] [t] tight|thought of something nice|hummed a tune}. It helped {a little|a bit}.
"{One, two, three,|Ready?|Here I go,}" [h.he] {whispered|told [h.self]}.

first, {they only looked at it|they went a little closer|[f] showed how to do it}. {then|after that,} [h] {tried|dared to try} {a small bit|the first step|it for one second}. {Nothing bad happened!|It was not so bad.|[h.He] was still fine.}
the first time, [h] {turned back halfway|stopped after one step}. The second time, {it was easier|[h.he] got farther}. {Then came the third time|Now for the third try}.
[f] went first{ and waved|, slowly|}. "{See? Nothing to it|Now you|Your turn}!"

@p
and {<suddenly> [h] did it|then it happened}: [h.he] [y]! "{Look at me|I did it|I am doing it}!" [h.he] <cried>.
[h] {shut [h.his] eyes tight|bit [h.his] lip} and [y]. {It was not scary at all|It tickled in [h.his] tummy|What fun it was}! "{Again!|One more time!|Did you see that?}" [h.he] <cried>.
with {shaky legs|a fast heart|[f] close by}, [h] [y]. {The wind was in [h.his] ears|Everybody clapped}. It was {wonderful|over so fast|better than cake}!

@?
[h] did it {[n] more times|again and again} {that day|before dinner}.
now [f] could {hardly|not} get [h] to {stop|go home}!
from then on, {the others wanted to sit next to [h]|nobody laughed at [h] anymore}.

[h] felt proud and glad. {"Thank you for waiting for me," [h.he] told [f].|"I am still a little scared, but I can do it," [h.he] said.|Fear is smaller when a friend is near.}
when [g] heard about it, [g.he] {gave [h.him] a big hug|baked a cake}. [h] {was|felt} proud and glad{, from head to toe| all evening|}.
[h] and [f] walked home. [h] felt proud and glad. {[h.He] had been afraid, and [h.he] had done it anyway|Brave is not the same as fearless, [h.he] now knew}.

PLOT a quarrel # any # dry # [f]
LET x y: what to play ~ [h] wanted to play hide and seek, but [f] wanted to play ball / who was faster ~ each of them wanted to be the fastest / a drawing ~ [f] had spilled water on the drawing that [h] had made / a secret ~ [f] had told a secret of [h] to everyone / the last muffin ~ there was one muffin left, and both wanted it / a game ~ [h] said that [f] did not play fair / a stick ~ both had seen the same long stick first
Q: What was the quarrel about? ; What did [h] and [f] fight about? # It was about *. ; They fought about *. # [x] # a {bird|fish} / the {weather|moon} / a pair of {socks|boots} / a {song|dance}
Q: With whom did [h] have a fight? # With *. ; It was *. # [f] # stranger
Q: Where were they when the fight began? # They were *. # [p.at] # place
Q=a: Who said sorry first? # * said sorry first. # [h] # [f] / [g] / the {teacher|baker} / the {mailman|farmer}
Q=b: Who said sorry first? # * said sorry first. # [f] # [h] / [g] / the {teacher|baker} / the {mailman|farmer}

@p
[h] and [f.intro] {played together almost every day|shared everything|were always seen together|had been friends for years}.
[h] {liked nobody better than|spent every free hour with} [f.intro]. {They knew all of each other's secrets|They had the same laugh|Nobody could part them}.

[w.when] they {met|were playing|sat} [p.at]. {Then a quarrel began|But it did not go well}. It was about [x]: [y].
[w.when] they had a {fight|quarrel} [p.at]. {And about what?|What was it about?} It was about [x]. {You see, |}[y].
[w.when] something {silly|bad} happened [p.at]. [y], and {so they began to quarrel about [x]|a fight about [x] began}.

"{You are mean|It is all your fault|That is not fair}!" <cried> [h]. "{No, you are|It is yours|You always say that}!" [f] {answered|yelled back}.
[h] {stamped [h.his] foot|crossed [h.his] arms|made an angry face}. [f] {stuck out [f.his] tongue|kicked a stone|threw down [f.his] hat}. {Their voices got louder and louder|Even the birds flew away}.
{First they argued|First there were words}, then {there was shouting|they shouted}. "{I do not want to be your friend|I will never play with you again|Go away}!" said [h]. [f] {turned red|was too angry to answer}.

{Both walked away|Each went home alone|They turned their backs and left}, {one up and one down the road|one to the left, the other to the right|without looking back|with slow steps}.
[f] <ran> off, and [h] {stayed behind|sat down [s.at]} {with hot cheeks|with a heavy heart|and kicked at the dust}.

@p
at home, [h] {tried to play with [h.his] [t.color] [t]|looked at a book|stared at the wall}. {It was no fun.|Everything made [h.him] think of [f].|The room was so quiet.} [h.He] felt <sad>.
the next day was {long|slow|gray}. [h] {had nobody to talk to|ate lunch alone|did not feel like singing}. {[h.He] missed [f]|It felt as if something was missing}.
for the rest of the day, [h] {could not laugh|sat by the window}. {Was [f] sad, too?|Why had [h.he] said such things?}

@?
"{Even good friends fight sometimes|A fight is like rain: it passes|The word sorry is small, but strong}," [h.his] [g.kin] <said>.
[g] {saw [h.his] sad face|brought [h.him] some milk}. "{Do you want to tell me|What is on your mind}?" [h] told [g.him] everything{, and felt a bit lighter|}.

@=a
<soon> [h] {made up [h.his] mind|stood up}. [h.He] {took [n] [d]|picked some flowers|drew a picture of the two of them} and <ran> to [f]. "I am sorry," [h.he] said. "{I was wrong to shout|A friend is more important than that}."
[h] went to [f]'s door and {knocked three times|waited, then knocked}. "Sorry," [h.he] said {when it opened|in a small voice}. "{I do not want to fight|I miss you}."

@=b
<suddenly> there was a knock at the door. It was [f]! {[f.He] had [n] [d] in [f.his] hands|[f.His] eyes were red}. "I am sorry," said [f]. "{I should not have said that!|Can we be friends again?}"
then [h] heard a {soft|small} voice {outside|under the window}. "[h]? I am sorry," it said. It was [f], with {flowers|a drawing|[f.his] best marble} in [f.his] hand.

@=a
[f] {smiled|let out a long breath}. "{I am sorry, too|I wanted to come to you|I missed you so much}," [f.he] <said>.
at first [f] {said nothing|looked away}. <then> [f.he] {held out [f.his] hand|laughed}. "{Friends again|Let us forget it}!"

@=b
"{So am I|Me, too|I was silly}," [h] <said> and {opened the door wide|took [f]'s hand|laughed with relief}.
[h] {jumped up|could not be angry anymore}. "{Of course|Yes, yes|Come in}! {I missed you|We were both silly}."

@p
{They hugged|They shook hands}, and {then they laughed about it all|the quarrel was over|soon they could not remember who had started}.
then the friends {made a plan|made a rule}: {first one game, then the other|when we are angry, we count to ten|talk first, shout never}.
<soon> they were {back [p.at]|playing again}, {side by side|as if nothing had happened}.

{A good friend is worth a little word|It takes two to quarrel, and one to say sorry|After the rain, the sun feels warmer}.
to say sorry {is not easy, but it works|takes courage}, {and [h] knew that now|that much was clear}.
after that, [h] and [f] were {even better friends than before|closer than ever}.

PLOT building # any # dry # [x]
LET x y z w2: a tower ~ stones ~ too thin at the bottom ~ made the bottom wide / a raft ~ sticks and rope ~ tied with weak knots ~ tied strong knots / a tree house ~ boards and nails ~ nailed to a thin branch ~ chose a thick branch / a bridge ~ planks ~ too short ~ found longer planks / a bird house ~ old boards ~ full of holes ~ filled every hole / a sand castle ~ wet sand ~ too close to the water ~ moved away from the water / a fort ~ blankets and chairs ~ held by one chair only ~ used four chairs / a wagon ~ a box and wheels ~ rolling on loose wheels ~ fixed the wheels / a snow white boat ~ paper and wax ~ open on one side ~ closed the sides
Q: What did [h] want to build? ; What did they build? # It was *. ; *. # [x] # a {rocket|plane} / a {chair|table} / a {fence|well} / a {road|barn}
Q: What did [h] use to build it? # [h] used *. ; *. # [y] # {apples|cheese} / {feathers|leaves} / {bread|soup} / {socks|hats}
Q: Who helped [h]? # * helped. ; It was *. # [f] # stranger
Q: What was wrong with the first try? # It was *. # [z] # too {pink|green} / too {loud|quiet} / made of {bread|ice} / eaten by a {goat|cow}
Q: What did they do better the second time? # They *. # [w2] # {gave up|went home} / {took a nap|sang a song} / {ate lunch|called a doctor} / {painted it black|cut it in half}

@p
[w.when] [h] had {an idea|a plan|a big idea}. "{I will build [x]|I want to make [x]}!" [h.he] <said>.
[w.when] [h] {saw a picture of|dreamed about|read about} [x]. "{I can make that,|I want one,|How hard can it be?}" [h.he] thought.
[w.when] there was nothing to do. "{What if I build [x]?|I could build [x]!}" {thought|said} [h].

[h.he] {collected|got|looked for} [y] and {carried everything to [p]|began to work [p.at]|put it all in one place}.
"{What do I need?|Let me see,}" [h.he] said. The answer was [y]. {[g] gave [h.him] some|There was plenty behind the house}.
[h.he] took [y] and {started at once|rolled up [h.his] sleeves|got to work}.

@?
{It took all morning|The work was hard|Up, down, left and right it went}. [h] {sang while working|got dirty hands|did not stop for lunch}.
[f.intro] {watched|laughed}. "{That will not work,|Are you sure about that?|Be careful,}" said [f]. [h] {did not listen|only smiled|kept on}.

<soon> it was {done|ready}. [h] {stood back to look|was so proud|clapped [h.his] hands}. {Then came a {crack|creak}|But then it shook}, and, oh no, {it fell apart|it all came down|it broke into pieces}!
at last [h] {tried it|gave it a test|touched it with one finger}. {Crash|Bump|Crack|Boom}! {All the work was gone|It was only a heap now|Everything lay on the ground}.
it {looked|was} <good>, but {not for long|only for a minute}. {A little wind came|The first test came}, and {down it went|it was broken}.

{[h] wanted to cry|[h] kicked the pieces|[h.He] sat down and put [h.his] head in [h.his] hands}. "{I am no good at this|I give up|It will never work}," [h.he] {sighed|said}.
[h] was {angry|<sad>}. {So much work for nothing!|All that work!|Why did it have to break?}

@p
<then> [f.intro] sat down {beside [h.him]|on the ground}. "{Let us find out why|Everything can be fixed|A mistake can teach us something}," [f.he] <said>.
<then> [f.intro] {came to help|looked at the pieces}. "{Do not give up|Try once more|I will help you}," said [f]. "{What went wrong|Where did it break}?"

they {looked closely|thought about it}. It was [z]! "{Now I see|That is why|So that was it}," said [h].
"{Look here|I know why}! It was [z]," {said|cried} [f]. [h] {nodded|saw it, too|had not thought of that}.

@?
[h] {drew a plan {in the sand|on paper}|made a list}. {[f] fetched tools|[f] counted the parts}.
[g] {lent them a hammer|brought water and [d]}. "{Work slowly|Good luck}, you two!"

so the second time, they [w2]. {It took longer|They worked slowly}, but {it looked strong|they did it right|it was worth it}.
this time they [w2], and {they tested every part|one held while the other worked|they did not hurry}.

@p
"{Ready|Now|Shall we test it}?" {They held their breath|[h] shut one eye|[f] counted to three}. {It held|It worked|It stayed whole}! {They jumped up and down|What a cheer there was|[h] threw [h.his] hat into the air}.
{The wind blew, but it stayed|They tried it once, twice, three times}. It worked! "{We did it|Hurray}!" {both|they} <cried>.

@?
<soon> {everybody came to see it|half the neighborhood stood around it}. "{Who made that?|That is <good> work!}" said [e].
they {hung a [c] ribbon on it|put a little [c] flag on top|gave it a name}.

"{It is good that it broke the first time|First it had to fail}," said [h]. "{Now I know how to do it|That way we learned how}."
"{If it does not work, try another way|Failing is a part of making|Two heads are better than one}," {said [h]|said [f]}.
[h] {shook [f]'s hand|gave [f] a hug}. "{Next time we will build something even bigger|You are the best builder I know}!"

PLOT a trick # any # dry # [f]
LET x y z: a wolf ~ hid behind the door and growled ~ growling / a ghost ~ put a white sheet over [h.his] head ~ howling / a snake ~ pulled a rope through the grass ~ hissing / a fire ~ ran around and yelled for water ~ yelling / a bear ~ put on a brown coat and roared ~ roaring
Q: What did [h] play a trick about? ; What was not real at first? # It was about *. ; *. # [x] # a {king|queen} / a {storm|flood} / a {dragon|giant} / a {thief|clown}
Q: Whom did [h] scare first? ; Who was scared first? # It was *. # [f] # [g] / [e] / the {teacher|baker} / nobody at all
Q: Why did nobody come when [h] called? # Because *. # they took it for a trick # they were all asleep / they were far away / they could not walk / it was too cold
Q: Where was [h] when [h.he] really needed help? # [h.he] was *. # [p.at] # place

@p
[h] liked {jokes|tricks|pranks}, {but not all of them were nice|and sometimes too much}. [w.when] [h.he] [y].
[w.when] [h] {was bored|wanted to have some fun}. So [h.he] {made a plan. [h.He]|had a silly idea and} [y].

"{Help|Watch out|Run}! {It is [x]|There is [x]}!" [f.Intro] {jumped|screamed|dropped [f.his] [d]} and ran away. [h] <laughed>. "{It was only me|Just a trick|Got you}!"
[f.intro] heard the [z] and {turned white|nearly fell over|ran as fast as [f.he] could}. "{Is it [x]?|Help, [x]!}" [f] <cried>. But it was only [h], who could not stop laughing.

@?
"{That was not funny|You scared me so much|Do not do that}!" said [f]. {[f.His] hands were shaking.|[f.He] was close to tears.}
[f] {was angry|did not laugh}. "{What if you really need help one day?|One day nobody will believe you!}"

but [h] {did it again|did not stop}. {The next day|Two days later}, [h.he] fooled [e]. "{There is [x]|Come quick, [x]}!" {[e] came running with a broom|[e] dropped everything to help}, {and there was nothing|for nothing}.
{It worked so well|It was such fun} that [h] tried it on [g], too. "[X]!" [h.he] <cried>. [g] <ran> {outside in slippers|out with wet hair}, but {found only [h], laughing|there was nothing}. "{I do not like this game|Please stop that}," said [g].

@p
then, on {another|a gray|a quiet} day, [h] was alone [p.at]. [h.He] {stepped into a hole|slipped on wet leaves|got [h.his] foot stuck} and {could not get up|could not get out}. "{Help|Please help me}!" [h.he] <cried>.
{some days|a week} later, [h] climbed {a tree|a wall} [p.at]. {A branch broke|A stone came loose}, and [h] {hung there|was stuck up there}. "Help! {Somebody help|I cannot get down}!"

nobody came, {for|because} {all of them|the neighbors|the people} thought {of the old trick|it was only a trick}. "{That is only [h]|Not again}," said [e], and {went on with [e.his] work|closed the window}.
{people|the neighbors|everyone} heard it, but {took it for a trick|thought that it was a trick again|a trick it was, or so they thought}. {"We will not be fooled again," they said|They shook their heads and walked on}. [h] {began to cry|was really scared now}.

@?
{It got late|The sun went down}. [h] was cold and {alone|hungry}. "{If only I had not lied|It is my own fault}," [h.he] thought.
[h] {called until [h.his] voice was gone|waited and waited}. {A long hour went by.|Nobody, nobody came.}

@p
{At last|Then} [f] {came by|came to look}. "{I was not sure|I thought it was another joke}, but {what if it was true?|you sounded so scared,}" [f.he] said and {pulled [h.him] out|helped [h.him] down|gave [h.him] a hand}.
{At last|Then} {a face appeared|there were steps}. It was [f]! "{You really are stuck|This time it is real}!" said [f] and {ran for a rope|pulled hard} {until [h] was free|to get [h] out}.

"{I am so sorry|Forgive me}," [h] {said|cried}. "{I will not trick people anymore|No more tricks like that}." {And [h.he] kept [h.his] word.|[f] believed [h.him].}
[h] {hugged [f] with wet eyes|could not say thank you often enough}. The next day [h.he] {went to everyone|visited each of them} and said sorry{, one by one|}.

a joke is only {good|funny} {when everybody can laugh|if nobody gets hurt}.
who {lies|cries for nothing} too often is not believed {when it counts|when it is true}.
from then on, [h]'s jokes {were kind ones|made everybody laugh}, {even [g]|and most of all [f]}.

PLOT a surprise party # any # dry # a party
LET x: a chocolate cake / an apple cake / a carrot cake / a lemon cake / a berry cake / a plum cake / a honey cake
Q: Whose birthday was it? ; Who had a birthday? # It was *'s birthday. # [h] # stranger
Q: What did [f] give to [h]? ; What was in the present? # It was *. ; *. # [t.a] # [u.a] / a {lamp|chair} / a {coat|shoe} / a {pen|rug}
Q: What kind of cake was there? ; What did they eat? # It was *. ; *. # [x] # a {cheese|fish} pie / a {potato|bean} soup / a {melon|nut} salad / a loaf of bread
Q: Where was the party? # It was *. # [p.at] # place
Q: Why was [h] sad at first? # Because *. # [h.he] thought that everybody forgot # [h.he] hurt [h.his] foot / [h.he] lost [h.his] shoes / [h.he] had to go to school / the cake was burned

@p
it was [h]'s birthday. [h.He] {jumped out of bed|woke up early|could not wait}. But {nobody said a word|no one seemed to know|it was just like any other day}.
[w.day] was [h]'s birthday. "{Good morning|Hello}!" [h.he] <cried>. [h.His] [g.kin] only {nodded|said, "Eat your breakfast."|yawned}.
[h] had counted the days: {ten, nine, eight|three, two, one}. At last it was [h.his] birthday! {But where was everybody?|But the house was quiet.}

[h] met [f.intro]. "{Do you know what day it is|Is today not special}?" asked [h]. "{It is [w.day],|No, why?|It is a day like any other,}" said [f], {and hurried away|and looked at the ground|who had no time}.
on the street, [f.intro] {walked by|passed [h.him]}. "{I am busy|I cannot play today|No time, no time}," [f.he] said and <ran> off {with a bag|with something behind [f.his] back}.

@?
even [e] {only waved|said nothing about it}. {How strange!|That hurt a little.}
{[h] looked for a card in the mail|[h] looked [i.at]}. There was {nothing|only dust}.

[h] sat down [s.at]. [h.He] was <sad>, for [h.he] thought that everybody forgot. {"Not even one song," [h.he] said.|A tear fell on [h.his] knee.|Nobody had ever felt so alone.}
[h] thought that everybody forgot, and {went for a walk alone|lay down on the grass|a tear came}. {What a sad birthday!|It was the worst birthday ever.}

@?
but {there was a secret|somebody had a plan}! {All week|For days}, [f] and [g] had {whispered|made lists|baked and painted}.
what [h] did not know: {at that very moment|not far away}, [f] was {blowing up balloons|hanging up lamps|lighting candles}.

@p
{in the afternoon|later}, [g] said, "{Come with me, I need help|Let us go for a walk|Please carry this bag}." They {went|walked} to [p]. {It was very quiet there.|[h] walked slowly.}
<then> [g] came. "{Please close your eyes|Let us take a walk}," [g.he] said, and {led [h.him] away|they went} to [p].

"Surprise!" {Everybody jumped up|A crowd jumped out|So many voices}! The whole party was [p.at]{: friends, neighbors, balloons|, with lamps in the trees|, with music and flags}. {[h]'s mouth fell open|[h] could not believe [h.his] eyes}.
[p.at], {from behind the trees|from every side} came [f], [e] and all the others. "{Surprise|Happy birthday}!" they <cried>. {There were [n] [c] balloons|Someone played the drum}.

"{You did not forget|So you knew}!" [h] {cried|said}. "{How could we?|Never!}" laughed [f]. "{It was so hard to keep the secret|I almost told you}!"
[h] laughed and cried {at the same time|all at once}. "{I thought nobody remembered|And I was so sad}!" "{That was part of the plan|We are sorry for that}," said [g].

there was [x], {with [n] candles|with cream on top}, and {[h] blew hard|everybody got a piece|[e] cut it}. [f] {gave [h.him]|had a present for [h.him]:} [t.a].
they {sang|danced} and ate [x]. {From [f] came a present|Then [f] held out a present}. It was [t.a]{, just what [h] had wanted|, made of [t.mat]|}!

@?
they played {musical chairs|games in the grass|hide and seek} until {the moon came up|it was dark}.
[e] {told a funny story|danced with [g]|played an old tune}, and {everybody laughed|all clapped along}.

"{This is the best birthday of my life|You are the best friends of all}," said [h] with {a full mouth|cake on [h.his] nose|shining eyes}.
"{Never give up on your friends|Sometimes, people are quiet because they plan something nice|A surprise needs a little patience}," {said [h]|said [g]}.
[h] made a wish, {but [h.he] did not tell it to anyone|and it was that next year would be the same}.

PLOT a storm # any # rain # a storm
LET x y z: played cards ~ a game of cards ~ cards / told stories ~ stories ~ stories / sang songs ~ songs ~ songs / built a cave of blankets ~ a cave of blankets ~ blankets / made shadow animals on the wall ~ shadows on the wall ~ shadows
Q: What made [h] afraid? # It was *. # the thunder # the {cat|owl} / the {clock|door} / the {snow|mouse} / the {train|bees}
Q: What went out in the storm? # * went out. # the lights # the {fire|stove} / the {cat|dog} / the {bell|clock} / the {moon|sun}
Q: Who came to the door? # It was *. # [f] # stranger
Q: What did they do during the storm? # They *. # [x] # {swam in the lake|went fishing} / {planted flowers|rode bikes} / {slept outside|bought shoes} / {painted the fence|baked bread}
Q: What did they see after the storm? # They saw *. # a rainbow # a {whale|shark} / a {ship|train} / a {snowman|star} / a {lion|camel}

@p
[w.when] the wind {began to blow|grew strong|howled around the house}. {Dark clouds came over the hills|The sky turned black}. "{A storm is coming|Come inside, quick}!" [g] <cried>.
[w.when] [h] was [p.at] when the storm {began|broke loose}. {The sky was dark|The trees shook}. [h.He] <ran> home, {and [g] shut the door behind [h.him]|wet from head to toe}.

{Rain beat on the roof|Water ran down the windows|The whole house shook}. {Flash|Crack|Boom}! [h] {hid|crept} {under the bed|under the table|behind the couch}. It was the thunder that {scared [h.him] most|made [h.him] so afraid}.
lightning {lit up|flashed over} the {room|wall|garden}. {Then came the thunder|The thunder followed|And the thunder}: {boom|crash|bang}! [h] {put [h.his] hands over [h.his] ears|jumped into [g]'s arms|hid under a blanket}.

@?
then the lights {went out|all went out}. {Now it was as dark as the night|Nobody could see a thing}. "{Where are you?|I do not like this!}" {cried|called} [h].
<suddenly>, click, the lights went out. [g] {lit a candle|found a lantern [i2.at]}, {and the room glowed|and that was better}.

somebody knocked. {Who could that be in this weather?|At the door? Now?} It was [f.intro], {dripping wet|who had lost [f.his] way|cold and shaking}. "{May I come in|Can I stay until it is over}?" [f] <asked>.
there was a {bang|knock} at the door. {Was it only the wind?|[h] peeked out.} No, there stood [f.intro], {as wet as a fish|with a broken umbrella}. "{Please let me in|It is awful out here}," said [f].

[g] {gave [f.him] a dry coat|put [f.him] by the stove|rubbed [f.him] dry} and made {warm milk|hot soup|tea with honey}.
"{Come in, come in|You poor thing}!" said [g]. {Soon [f] had dry clothes and a hot drink|A blanket and a cup of soup helped a lot}.

@?
"{Are you afraid, too|Does the noise scare you}?" [h] <asked>. "{A little|Yes, a lot}," [f] {said|whispered}. {That made [h] feel better|So they held hands}.
"{Thunder is only a big noise|The storm cannot come in|Count after the flash, and you know how far it is}," [g] <said>.

@p
"{What shall we do|How can we pass the time}?" asked [h]. So they [x]. {Each boom was a bit quieter|They forgot all about the noise|Whenever it thundered, they laughed}.
to pass the time, they [x]. {First [h], then [f], then [g]|They laughed so loud that they did not hear the wind}.
{because nobody liked the noise|instead of listening to the noise|against the fear}, {all of them|the three of them|they} [x]. {It was cozy|It was almost like a party}.

<soon> {the rain stopped|it grew quiet|only single drops fell}. [h] {opened the window|ran outside}. The air {smelled fresh|was clean}, and {over the hill|above [p]} there was a rainbow!
when {it was over|the last cloud had gone}, they {went out|looked out}. {Look!|Oh!} A rainbow {stood in the sky|went from [p] to the hills}.

@?
{the two|[h] and [f]} {jumped from puddle to puddle|counted the colors|picked up fallen branches} {until dark|and laughed}.
a nest had fallen {from the tree|down}. They put it back {with care|together}, and a bird sang {for them|its thanks}.

"{Storms are not so bad when you are not alone|Next time I will not hide}," said [h].
"{Without the storm, there would be no rainbow|After a storm, the world looks new}," {said [f]|[g] told them}.
"{Come back when the sun is out|Next time, come without a storm}!" [h] {called after [f]|told [f]} {and waved|when it was time to go}.

PLOT a hurt animal # any # dry # a [a.size] [a]
LET x y: its leg ~ put a bandage on / its foot ~ washed / its side ~ cleaned / its head ~ put cream on / its knee ~ wrapped a cloth around
Q: What animal did [h] find? # It was *. ; [h] found *. # a [a] # animal
Q: What was hurt? # It was *. ; *. # [x] # its {eye|tooth} / its {back|tummy} / its {chin|nose} / its {tongue|lip}
Q: Where did [h] find the [a]? # [h.he] found it *. # [s.at] # spot
Q: Where did it sleep? # It slept in *. # a [t.color] box # a [u.color] box / a [c] bed / an old {boot|bucket} / a big {pot|tent}
Q: Who knew what to do? # It was *. # [e] # who

@p
[w.when] [h] heard a {soft|small|strange} {sound|cry} [s.at]. {What was that?|[h.He] went closer.} There sat a [a.size] [a]. It could not {get away|get up|move well}.
[w.when] [h] was {out for a walk|playing [p.at]}. {Something moved|Something made a noise} [s.at]. It was a [a.size] [a], {all alone|and it looked scared|shaking with fear}.

[x] was hurt. {It looked at [h] with big eyes|It tried to hide|A little blood was there}. "{You poor thing,|Do not be afraid,|Oh, does it hurt?}" [h] {whispered|said softly}.
"{What happened to you|Who hurt you}?" [h] said {in a low voice|and knelt down}. Then [h.he] saw it: [x] was {hurt|bleeding|hurt badly}.

@?
[h] {wanted to pick it up|put out [h.his] hand}, but {it was too scared|it pulled back}. So [h.he] {sat very still|waited|sang softly} until it {calmed down|came closer}.
[h.he] looked around. {There was no mother|Nobody else was near}. {Somebody had to help, and that was [h]|It was up to [h] now}.

[h.he] {took off [h.his] scarf|used [h.his] jacket} and {wrapped it up|lifted it} with care. {Then|After that,} [h.he] {carried it|walked slowly} to [e], who knew a lot about animals.
{very gently|slowly and softly}, [h] picked it up and took it to [e]. [e.He] {had helped many animals before|knew what to do}.

"{You were right to come|Let me see}," said [e]. [e.He] [y] [x], and [h] {held it still|helped|spoke to it}. "{It needs rest|In a few days it will be well}."
[e] {looked at it closely|put on [e.his] glasses}. "{It is not so bad|We can fix that}." [e.He] [y] [x]. {"Now it needs food and sleep," [e.he] said.|It did not even cry.}

@p
[h] made a bed in a [t.color] box {with soft grass|with an old towel|beside [h.his] own bed}. {Every day|Each morning and night}, [h.he] gave it {water and seeds|milk and bread|fresh leaves}.
at home, it slept in a [t.color] box {beside the stove|under the window|near the bed}. [h] {fed it with a spoon|got up at night to look at it|gave it fresh water every day}.

@?
[f.intro] came to see it. "{Can I help|Will it live}?" [f] <asked>. {The two took turns|They sat by the box for hours}.
"{What shall we call it|Does it have a name}?" asked [f.intro]. "{Lucky|Button|Bean}," said [h], and {that was its name|so it was}.

{after [n] days|day by day}, it {got stronger|began to move around|ate more and more}. {One morning|Then} it {stood up|climbed out of the box}, and [h] {clapped|cheered}.
<soon> it could {move well again|walk around the room}. [h] was <happy>, {but also a little sad|for it was well again}.

@p=a
"It {wants to go home|belongs outside}," said [g]. [h] {swallowed hard|nodded} and took it back to {the place where [h.he] had found it|[p]}. "Goodbye, {little friend|my dear}!" It {looked back once|turned around}, {then it was gone|and off it went}.
{one bright day|the next week}, [h] opened the {door|gate}. The [a] {sniffed the air|looked at [h.him]} and {was gone|went out into the grass}. "{Be happy|Take care}!" [h.he] <cried>.

@p=b
"May I keep it?" [h] asked [g]. {They looked for its mother, but found none|It had no home}. "{Yes, you have taken good care of it|All right, it can stay}," said [g].
[h] brought it {outside|to the tall grass}, but it {followed [h.him] home|would not leave}. {It had made up its mind|It had found its home}! So it {stayed|lived with them from then on}.

@=a
{some weeks later|in spring}, something {scratched at the door|sat at the window}. {It was the [a], with two babies|It was an old friend}! [h] {laughed|smiled} with joy.
[h] {missed it|looked for it each day}. But {who loves an animal must let it go|it was right that way}.

@=b
now [h] {had a friend who slept at [h.his] feet|was never alone}. {To care for someone is hard work, and [h] liked it|Kindness always comes back}.
it {waited for [h] each day|followed [h.him] everywhere}, and {[h] learned to read its eyes|they were happy together}.

PLOT learning a skill # any # dry # learning [x]
LET x y z v: to ride a bike ~ rode a bike ~ fell over to the side ~ look ahead, not down / to whistle ~ whistled a whole tune ~ only blew air ~ make the mouth small and round / to swim ~ swam across the pond ~ swallowed water ~ kick with both legs / to tie a bow ~ tied a perfect bow ~ made a big knot ~ make two bunny ears first / to skip rope ~ skipped ten times ~ stepped on the rope ~ listen to the sound of the rope / to juggle ~ juggled three balls ~ dropped every ball ~ throw them all to the same height / to walk on stilts ~ walked on stilts through the yard ~ fell into the grass ~ bend the knees a little / to play the flute ~ played a song on the flute ~ made a squeaky noise ~ blow softly, like a summer wind / to climb a rope ~ climbed the rope to the top ~ slid down again ~ use the feet as well as the hands / to fly a kite ~ flew a kite as high as the clouds ~ pulled the string too hard ~ run against the wind
Q: What did [h] want to learn? # [h] wanted *. ; *. # [x] # to {bake bread|drive a car} / to {sew a coat|catch fish} / to {count to ten|paint a wall} / to {speak to bees|milk a cow}
Q: Who taught [h]? ; Who showed [h] how to do it? # It was *. ; * did. # [e] # who
Q: What advice did [h] get? # The advice was: *. # [v] # never try again / eat more soup / sleep all day / use a big hammer / ask the cat
Q: What happened at the first try? # [h] *. # [z] # fell asleep / began to sing / found a coin / caught a fish / broke a window
Q: Who could already do it? # * could do it. ; It was *. # [f] # stranger

@p
[w.when] [h] saw {how|that} [f.intro] [y]. "{I want to do that, too!|How do you do that?|That looks so easy!}" [h.he] said. [h.He] {had to learn|decided to learn} how [x].
[h] had one {big|great|secret} wish: [x]. [f.intro] could do it already, {and it looked so easy|and made it look like nothing}. [w.when] [h] {tried it for the first time|wanted to try, too}.
all the others [y], {it seemed|or so [h] thought}, even [f.intro]. Only [h] could not do it yet. [w.when] [h.he] tried [x].

the first time, [h] [z]. {Ouch!|Oh no!|Some children laughed.} The second time {was no better|was even worse}{, and neither was the third|}.
but what happened? [h] [z]! {It was harder than it looked|[h.He] tried again, with the same luck|Again and again, it went wrong}.
{it was not easy at all|things did not go well}. [h] [z], {sighed|shook [h.his] head} and {tried again|did it once more}.

@?
"{I am too small for this|This is too hard|I will never learn it}!" [h] {said|shouted} and {kicked a stone|threw [h.his] hat on the ground|sat down in the grass}.
[h.his] [g.kin] {saw it|watched from the window}. "{Nobody can do it on the first day|Give it time|A tree does not grow in one day either}," said [g].

<then> [e] {came by|stopped to watch|sat down on a bench close by}. "{I once had the same problem,|I can tell you a secret,|May I give you some advice?}" [e.he] {said|told [h.him]}. "It is simple: [v]."
[h] went to [e], who {had taught it to many children|knew all about it}. "{Listen|Here is the trick}," said [e]. "{You must|Always} [v]."

@?
[h] practiced {before school and after supper|every day for a week|until the street lamps went on}. [h.His] {knees had [n] bruises|cheeks were red}, but [h.he] {did not stop|went on}.
{each day it went a little better|little by little, it got better}. {[f] clapped at every try|"Almost!" [f] said|On [w.day2], it nearly worked}.
[h] thought of it {in bed|at breakfast|all day long}: [v], [v]!

@p
and {one fine day|then, on the next try|on the last day of the week}, {it happened|it worked}: [h] [y]! {[h.He] could not believe it|The whole street heard [h.his] shout|It felt like flying}.
{it was a quiet evening|only [f] and [e] were there} when [h] {tried once more|took a deep breath}. And {look|see}! [h.He] [y], {just like that|as if it were nothing|from start to finish}!

"{Did you see that?|Look, [f], look!} {I can do it|It works}!" [h] <cried>. [f] {whistled|cheered|threw both arms up}, {and [e] nodded with a smile|and [g] came running}.
{"I knew it," said [e].|[e] took off [e.his] hat to [h.him].} "{All it takes is time|You did not give up}." {[f] shook [h.his] hand.|[h] took a bow.}

@?
now the two friends {did it together each day|could do it side by side}.
a week later, {a smaller child|[h.his] little cousin} asked [h] for help. "{I will show you|It is not hard}," said [h]. "You must [v]."

{practice is a good teacher|what is hard today may be easy next week|nobody is born with it; you have to learn it}.
[h] had {learned more than one thing|learned something else, too}: {never give up too soon|to fall is not bad if you get up again}.
[g] {made [h.his] favorite supper: [n] pancakes with jam|wrote the date on the wall: {the day when it worked|a day to remember}}.

PLOT a promise # any # sunny # a promise
LET x y z v: the plants ~ water the plants ~ dry and brown ~ green / the fish ~ feed the fish ~ thin and hungry ~ lively / the hens ~ feed the hens ~ thin and hungry ~ happy / the rabbit ~ give hay to the rabbit ~ hungry ~ round / the tomatoes ~ water the tomatoes ~ soft and sad ~ red / the pony ~ brush the pony ~ full of mud ~ clean
Q: What did [h] promise to do? # [h] promised to *. # [y] # {wash the car|read a book} / {sing a song|buy bread} / {catch a mouse|cut the grass} / {bake a cake|feed the lion}
Q: To whom did [h] make the promise? ; Who went away? # It was *. # [e] # stranger
Q: What made [h] forget the promise? # [h] * instead. # played with the [t] # played with the [u] / {slept all day|ate too much} / {went to school|read a book} / {cleaned the house|took a bath}
Q: Who reminded [h] of the promise? ; Who asked [h] about it? # It was *. # [f] # who
Q: How long was [e] away? # For * days. # [n] # number

@p
[w.when] [e] {knocked at the door|came to see [h]}. "I {have to go away|will be gone|must travel} for [n] days," [e.he] said. "Can you [y] {for me|while I am gone}?"
[e] had to {visit [e.his] sister|go to the city|take the train} for [n] days. [w.when] [e.he] asked [h], "{Would you|Could you please} [y]?"

"{Yes, I promise|You can trust me|I promise! Have a good trip}," said [h]. {[e] gave [h.him] the key|They shook hands on it|[h.He] felt very grown up}.
[h] {nodded|put [h.his] hand on [h.his] heart}. "{Every day|Each morning}, {I promise|you have my word}!"

{the first day went well|on the first day, [h] did just that}. {[h] was there early|[h.He] did not forget one thing|It took only ten minutes}.
at first [h] {went there each morning|did [h.his] job well}, {with a song on [h.his] lips|and even swept the yard}.

but then [h] got {a present|a package from [h.his] [g.kin]}: [t.a]! {What fun!|It was so nice!} [h.He] played with the [t] {from morning to night|all day}{, and the next day, too|}. {The promise was out of [h.his] head|Nothing else was in [h.his] mind}.
then came [t.a], {a gift|which [g] brought home}. [h] played with the [t] {inside and outside|until bedtime|and forgot the world around [h.him]}. {Of the promise [h.he] did not think at all|And [e]? And the promise? All forgotten}.

@p
"{What about [x]|How is it going with [x]|And [x]}?" [f.intro] asked {[n.less] days later|on [w.day2]|one day}. [h] {froze|turned pale|jumped up}. "{Oh no|Oh dear}! {I forgot|My promise}!"
<then> [f.intro] {came over|walked by}. "{Did you not promise something to [e]|Who looks after [x] now}?" [f.he] <asked>. {[h]'s heart stopped for a second|Now [h] remembered, and felt hot and cold}.

[h] ran {like the wind|as fast as [h.his] legs could go}{, and [f] ran, too|}. {The sight was bad|It was as [h.he] feared}: [x] looked [z]! "{I am so sorry,|What have I done?}" {whispered|said} [h].
they <ran> over{ together|}. [x] {looked|already looked} [z]. {[h] had a lump in [h.his] throat|[h] felt awful}. "{It is not too late|Quick, let us start}," said [f].

[h] {got to work|did not waste a minute}. {[h.He] fetched water, food and a brush|Up and down the path [h.he] ran}. {[f] helped, too|[f] carried buckets}. {That day and the next|From early to late}, [h.he] {took care of everything|did what had to be done}.
{all afternoon|until it was dark} [h] worked {to make it good again|without rest}. "{Please get well|Please be all right}," [h.he] said {again and again|in a soft voice}.

@?
{at night, [h] set a clock|[h] tied a string around [h.his] finger}, {so as not to forget again|to remember}. The [t] {stayed in its box|had to wait}.
{the next morning there was a small change|a day later, things looked better}. {"Look, it helps!" said [f].|[h] could breathe again.}

@p
when [e] came {home|back}, [x] looked [v] again. "{You have done well|Thank you}!" said [e]. [h] {looked at the floor|could have said nothing}. "{I must tell you something|No, that is not true}. I forgot it for {a few|some} days," [h.he] {said|admitted}.
{on the last day|when the time was up}, [e] {opened the gate|got off the train}. [x] looked [v] and {fine|well}. But [h] {told [e.him] the truth|did not hide what had happened}: the [t], the game, the forgotten promise.

[e] {was quiet for a bit|looked at [h.him]}. "{It takes courage to say that|You made it good again, and you were honest}," [e.he] <said>. "{I would ask you again|I still trust you}."
"{Thank you for telling me|Everybody forgets something once}," said [e]. "{What counts is that you came back|Next time you will think of it}." And [e.he] {gave [h.him] some [d]|patted [h.his] back}.

a promise {is like a little seed: you must look after it|is easy to make and hard to keep}.
from that day, when [h] {gave [h.his] word|said yes}, [h.he] {kept it|wrote it on the wall}.
{first the promise, then the fun|work first, play later}: {that was [h]'s new rule|so [h] did it from then on}.

PLOT a race # any # dry # a race
LET x y: running ~ on foot / bikes ~ on bikes / skates ~ on skates / wagons ~ in little wagons / jumping ~ in sacks / scooters ~ on scooters
Q=a: Who won the race? ; Who was first? # * won the race. ; It was *. # [h] # who
Q=b: Who won the race? ; Who was first? # * won the race. ; It was *. # [z] # who
Q=a: Why did [f] lose the race? # Because [f.he] *. # stopped to rest # had no shoes / broke [f.his] leg / went to school / never started
Q=b: Why did [h] stop in the race? ; Why did [h] not win? # Because [h.he] *. # helped [f] # was too tired / fell asleep / lost [h.his] shoe / was afraid
Q=c: Why did nobody lose? # Because they *. # crossed the line together # both fell asleep / went home early / forgot the race / got lost
Q: Where was the race? ; Where did they race? # It was *. # [p.at] # place
Q: What was the prize? # The prize was *. # [t.a] # [u.a] / a {lamp|chair} / a {coat|cake} / a {pen|rug}

@p
[w.when] there was a big race [p.at]. The prize was [t.a]. {Everybody talked about it|People came from all around}. {[h] wanted to win|[h] put down [h.his] name at once}.
"{Who wants to race|Who is the fastest of you all}?" [e] called [p.at]. "The prize is [t.a]!" [W.when] {everybody came, and so did [h]|the race was to begin, and [h] stood at the front}.

[f.intro] was there as well. "{I am the fastest of all|I will win, you will see|You are much too slow}," [f.he] {said|bragged|laughed}. {[h] said nothing|"We shall see," said [h]|[h]'s ears turned red}.
next to [h] stood [f.intro], who {had won last year|had longer legs|had practiced all summer}. {"Good luck," said [h].|They smiled at each other.|They shook hands.}

they went [y]. "{One, two, three, go!|Ready, steady, go!|On your marks, get set, go!}" <cried> [e]. {Dust flew up|The crowd roared|Off they went}!
[e] {waved a [c] flag|blew a whistle|beat a drum}, and off they went [y], {faster and faster|as if bees were after them|over sticks and stones}.

@p=a
[f] was {soon far ahead|in front from the start}. [f.He] {looked back|could see no one behind [f.him]}. "{I have all the time in the world|[h] will never catch me}," [f.he] said, and stopped to rest [s.at]. {[f.His] eyes fell shut|It was so nice and quiet there}.
at first, [f] was {much|a lot} faster. "{This is too easy|I could win asleep}!" [f.he] <cried>. {Halfway,|In the middle of the race,} [f.he] {sat down [s.at]|lay down} and stopped to rest{ and to eat some [d]|}.

@=a
[h] {was not fast|was far behind}, but [h.he] {did not stop|kept going}, {step by step|bit by bit|up hill and down}. {Quietly|Slowly}, [h.he] {passed the sleeper|went past}.
{On and on|Without a break} went [h]. [h.His] {side hurt|mouth was dry}, but {the goal came closer|[h.he] looked only ahead}.

@=a
when [f] {woke|looked up}, it was too late. {A great cheer went up|[h] was at the line}! [h] won the race{, by a nose|, and the crowd went wild|}!
{[f] jumped up and raced like mad|Too late [f] saw it}. {With the last bit of strength|One step before [f.him]}, [h] {fell over the line|crossed the line}. [h] {had won|was first}!

@p=b
halfway, {the two were side by side|[h] was just ahead}. <suddenly> there was a cry. [f] {had fallen|had hurt [f.his] foot} [s.at]. {The others rushed by|Nobody else stopped}. But [h] {turned around|stopped}.
[h] was {in the lead|first}! {The goal was near|Only a little way to go}. But what was that? [f] lay [s.at] and {held [f.his] knee|could not get up}. [h] {looked at the goal, then at [f]|did not think long}.

@=b
[h] helped [f] {to get up|to stand}. "{But now you will not win|Go on, run}!" said [f]. "{That does not matter|You matter more|There will be other races}," said [h].
"{Can you walk?|Lean on me,}" said [h] and helped [f] {over every stone|along the road}. {Slowly, one step at a time, they came to the end|They were the very last to arrive}.

@=b
{another runner|a quick stranger} named [z] {came in before them|was first}. [z] won the race, {but the people clapped loudest for [h] and [f]|but who got the most cheers? It was [h]}.
{a stranger|a quick runner} named [z] won the race that day. Yet {[e] called [h] to the front|everybody stood up for [h]}. "{A good heart is faster than any feet|This was the best thing I saw today}," said [e].

@p=c
{neck and neck|side by side} they went, {first [h] in front, then [f]|left, right, left, right}. {Neither could get away from the other.|Who would be first?} [h] {laughed|looked over}, and [f] {laughed, too|grinned back}.
[h] gave [h.his] best, and so did [f]. {At the well, [f] was ahead; at the gate, it was [h]|No one could say who was faster}.

@=c
just before the end, {[f] held out a hand|they looked at each other}. {"Together?" "Together!"|[h] took it.} And they crossed the line together{, hand in hand|, arm in arm}!
and then? {A dog ran out in front of them|The last hill was steep}, and they {slowed down|pulled each other up} and crossed the line together{, at the very same second|}.

@=c
"{Who won? Who won|And who gets the prize}?" the people asked. "{Both of them|Nobody lost today}!" said [e]. "{So be it|That is fair}!" And {the prize was for two|they took turns with the [t]}.
[e] {scratched [e.his] head|laughed}. "Two winners, one prize! {You must share the prize|One week for one, one week for the other}."

@=a
[f] {hung [f.his] head|came slowly over the line}. "{You were better|I was too sure of myself|Next time I will not laugh at you}," [f.he] said. {[h] gave [f.him] a hand|"It was close," said [h] kindly}.
[e] {put the [t] into [h]'s arms|handed over the prize}. {"Slow and steady," [e.he] said.|[h] let [f] hold it, too.|[f] clapped the loudest.}

@=b
[f] {never forgot it|squeezed [h.his] hand}. "{You lost the prize, but you won a friend|I would do the same for you}," [f.he] <said>.

@?
{in the evening|later|when the day was over}, {the two walked home together|they sat on a wall}, {tired and dusty|and ate [d]}. {Next year they would race again|"To the door!" said one of them, and off they went|They still laughed about it}.

PLOT a garden # any # spring # a seed
LET x y v: a sunflower ~ tall ~ yellow petals / a pumpkin ~ round ~ big leaves / a bean plant ~ long ~ green pods / a tomato plant ~ strong ~ red fruit / a little apple tree ~ thin ~ white flowers / a rose ~ lovely ~ soft petals / a carrot ~ crisp ~ feathery leaves / a strawberry plant ~ small ~ sweet berries / a melon ~ heavy ~ a striped skin
Q: What grew from the seed? ; What did [h] grow? # It was *. ; *. # [x] # a {cactus|mushroom} / a {palm|pine} tree / a {potato|radish} / a {tulip|daisy}
Q: Who gave the seed to [h]? # * did. ; It was *. # [e] # who
Q: Where did [h] plant it? # It was *. ; *. # [s.at] # spot
Q: What tried to eat it? # It was *. # a snail # a {lion|horse} / a {whale|bear} / a {fish|snake} / a {cat|wolf}
Q: How many days did [h] wait? # [h] waited * days. # [n] # number

@p
[w.when] [e] {put something into [h]'s hand|gave [h] a tiny thing}. It was a seed! "{Plant it and wait|There is something wonderful in it|Take good care of it}," said [e].
[w.when] [h] got {a seed|one small seed} from [e]. "{What will it be|What is in it}?" asked [h]. "{You will see|That is a surprise|Be patient}," [e] {said|answered}.

[h] {dug a hole|made a small hole} [s.at], {put the seed inside|dropped it in} and {covered it with earth|patted the ground}. {Then [h.he] gave it water|A cup of water came next}.
{with an old spoon|with both hands}, [h] dug {in the ground|a hole} [s.at]. In went the seed. "{Sleep well|Good night, little seed|Grow, please}," [h.he] said.

day after day [h] {looked at the spot|came to look}. {Nothing!|Only brown earth.} [h.He] waited for [n] days. "{Is it broken?|Maybe it is asleep!|When will it come up?}" [h] {wondered|asked [g]}.
[h] waited. {One day, two days, three days|It rained, and the sun shone}. After [n] days there was {still nothing|not even one leaf}.

@?
[f.intro] {laughed|shook [f.his] head}. "{There is nothing there|You are watering dirt}!" But [h] {went on|did not give up} {with the watering can|every morning}.
"{You cannot hurry a plant|Good things take time|Under the ground, it is busy}," [g] <said>.
[h] {sang to it|told it stories|sat beside it}. {Who knows, maybe it helped|[g] smiled when [g.he] saw that}.

@p
then, {after a warm rain|one early morning}, {something green|a small green tip} {peeked out of the earth|was there}! [h] {danced around it|called everybody|kissed the ground}.
and then: {a tiny green leaf|a bit of green}! "{It is alive|It is coming up|There you are}!" <cried> [h].

but {one night|the next day} a snail {came along|found it}. {Munch, munch!|It was hungry.} Half a leaf was gone! [h] {carried it far away|took it to the tall grass|put a ring of sand around the plant}. "{This is not your dinner|Eat something else, please}," [h.he] said.
{oh no! A snail|the next visitor was not welcome: a snail|who was that? A snail} {sat on it|had bitten into it|was eating it}! {What now?|[h] thought hard.} [h.He] {built a fence of little sticks|picked it up and gave it a cabbage leaf instead}.

@?
{weeks went by|summer came}. It {grew and grew|got taller than [h]'s knee|needed a stick to hold it up}.
when it was {too dry, [h] brought water|windy, [h] tied it to a stick}, and {when it was hot, [h.he] gave it shade|so it stayed safe}.

at last [h] could see what it was: [x], [y] and {beautiful|full of life}, with [v]! {Bees came from far away|Everybody stopped to look}.
{and what was it?|And now it was clear.} It was [x]! {How [y] it was!|It was so [y], with [v].} {[h] could not stop looking|[h] was proud as a king}.

@p
[e] {came to see it|was amazed}. "{You have green fingers|You were patient|I knew you could do it}!" [e.he] <said>.
[h] {showed it to [e]|ran to tell [e]}. "{All that from one small seed|You waited for it|How it has grown|It was worth the wait}!" said [e].

in autumn, there were {new seeds|[n.more] new seeds}. [h] gave {one to each friend|some to [e], some to [g]}. "{Plant it and wait|Be patient}," [h.he] said with a smile.
{[h] put a new seed in a small bag|[h] kept some seeds} for {the next year|spring}. {A garden never ends|Next time there would be a whole row}.
{small things can become great|who waits can see wonders|a little care each day can do a lot}, {and [h] knew it|and a seed knows that best}.

PLOT a trip # any # morning # a trip
LET x y z v k o: the sea ~ by train ~ a crab ~ shells ~ fields and houses flew by ~ a cow stood on the rails / the zoo ~ by bus ~ an elephant ~ feathers ~ shops and trees flew by ~ a goose stood in the way / the mountains ~ on foot ~ an eagle ~ stones ~ one hill came after another ~ a goat stood in the way / a farm ~ by wagon ~ a pony ~ horseshoes ~ meadows and barns rolled by ~ sheep crossed the road / an island ~ by ship ~ a seal ~ pebbles ~ white birds and waves went by ~ a family of ducks swam by / the big city ~ by train ~ a police horse ~ postcards ~ villages and bridges flew by ~ sheep stood on the rails / a castle ~ by bike ~ a peacock ~ chestnuts ~ trees and fences flew by ~ a hen crossed the road / the lake country ~ by boat ~ a swan ~ pine cones ~ trees and little beaches went by ~ a family of geese swam by / the woods ~ by car ~ a deer ~ acorns ~ villages and fields flew by ~ a cow stood in the way
Q: Where did they go? ; Where was the trip to? # They went to *. # [x] # the {desert|moon} / the {school|doctor} / the {bakery|shop} / a {church|factory}
Q: How did they travel? # They went *. ; *. # [y] # by {plane|rocket} / by {sled|camel} / on a {cow|goat} / by {balloon|truck}
Q: What did [h] see there? # [h] saw *. # [z] # a {whale|tiger} / a {camel|snowman} / a {dragon|monkey} / a {shark|panda}
Q: What did [h] bring home? # [h] brought home *. ; *. # [v] # {apples|nails} / {books|shoes} / {mice|bells} / {socks|pots}
Q: What was forgotten at home? # They forgot *. # the lunch # the {map|money} / the {dog|cat} / the {shoes|hats} / the {tent|boat}

@p
"{Wake up|Pack your things|Guess what}!" said [g]. "{Today we go|We will go} to [x]!" [h] {jumped out of bed|was wide awake at once|could not believe it}.
[w.when] [g] {had a surprise.|said, "Let us take a trip."} They would go to [x]! {[h] had never been there|It had been [h]'s wish for a long time}.
for weeks [h] had {looked forward to this|counted the days}: a trip to [x]! [w.when] {the time had come|it was time to go}.

[h] packed [t.a], {a warm sweater|a hat} and {[n] cookies|[n] cookies in a box}. [f.intro] {came along|could come, too}, {with a bag as big as [f.him]self|and the two sang all the way|which made it twice as nice}.
[f.intro] was {allowed to come|at the door very soon}. {"Do you have everything?" asked [g].|"Hurry up!" [f.he] said.} "Yes!" <cried> [h], {who carried [t.a] under one arm|and off they went}.

they {went|traveled} [y]. {[K]|The way was long|It took half the morning}. {They played a game: who sees the first cat?|[f] counted birds|[h] looked left and right all the time}.
{the way was long|it was far}, but [y] {it was fun|time went fast}. They {sang [n] songs|told riddles|waved to everybody}. "{Are we there yet|How much longer}?" asked [h] {again and again|ten times}.

@?
{<suddenly> they had to stop|then there was a stop}. [O]! "{Good morning|Please let us by}!" said [f], {and everybody laughed|very politely}.
the {sky|view} was {wide and blue|so big}. {Birds flew beside them for a while|It smelled of grass and adventure}.

@p
{at last they were there|then it lay before them}! {The air smelled different|Everything was new}. {[h] did not know where to look first|[h] and [f] ran ahead}. They {explored every corner|climbed and looked} {until they were hungry|for hours}.
"{Here we are|We made it}!" said [g]. {[h] turned in a circle to see it all|How big and beautiful it was}! {They looked left and right|They started to explore}.

then [h] {stood still|held [h.his] breath}. There was [z]! It {looked right at [h.him]|came so close}. "{Do not move|Be very quiet|Look, look}," whispered [f].
"{Come here|Over there}!" {called|whispered} [f]. {And what was it?|[h] came on tiptoe.} It was [z]! {They watched it for a long time|It did not mind them at all|[h] had seen that only in books}.

at noon, {their tummies growled|everybody was hungry}. [g] {opened the bag|looked for the food} and {turned red|gasped}. The lunch! {It was still at home on the table|They had forgotten the lunch|Nobody had packed it}!
"{I am so hungry|Time to eat}," said [f]. {They looked in each bag|[g] looked left and right}. But the lunch was {still at home|not there}! "{I forgot it|Oh dear}," {sighed|said} [g].

{"I have [n] cookies!" said [h].|[h] had an idea.} They {shared|divided} {what there was|the cookies}, {bit by bit|in three equal parts}, and {a kind woman gave them bread|a friendly man gave them soup}. {It tasted better than any lunch|Nobody stayed hungry}.
{an old man saw it|a family beside them heard it}. "{Come and eat with us|We have more than enough}!" They sat together and {ate bread, cheese and [d]|told stories over bread and soup}. {So they made new friends.|What luck!}

@p
before they left, [h] {collected|found} [v] {to take home|for [h.his] shelf}: {one for each day of the week|a small one, a big one and one in between}. {[f] found some, too|Every one was different}.
in the {afternoon|last light}, [h] {filled [h.his] bag with|found} [v]. "{So I will never forget this day|They are a piece of this place}," [h.he] said.

on the way {home|back}, {nobody talked much|it got dark}. [h] {fell asleep on [g]'s shoulder|leaned on [f]|saw the first star}.
{tired, dusty and happy|with full bags}, they {came home late|were home again by night}. "{Where shall we go next|Can we go again tomorrow}?" {asked|said} [h] with {a yawn|sleepy eyes}.

PLOT bedtime # any # night # bedtime
LET x y: a tapping sound ~ a branch at the window / a scratching sound ~ a cat at the door / a dark shape on the wall ~ a coat on a hook / a low growl ~ a dog that was snoring / a soft knock ~ rain in the pipe / a pair of shining eyes ~ an owl in the tree / a creaking step ~ the old stairs / a strange hum ~ the wind in the chimney
Q: What kept [h] awake? ; What was strange in the night? # It was *. # [x] # a loud {song|bell} / a big {spider|bear} / a {train|plane} / a {drum|baby}
Q: What was it really? # It was *. # [y] # a {thief|monster} with a bag / a {ghost|wolf} in a sheet / a {king|clown} with a horn / a {lion|snake} in the yard
Q: What did [h] hold in bed? # [h.he] held *. # the [t.color] [t] # the [u.color] [u] / the [c] [u] / a {book|shoe} / an {apple|onion}
Q: Who went to look together with [h]? ; Who came to help? # It was *. # [g] # who

@p
it was {late|bedtime}, and {the moon shone into the room|the house was quiet}. "{Sleep well|Good night|Sweet dreams}," said [g] and {turned off the light|closed the door|blew out the candle}. But [h] was {not tired at all|wide awake}.
{one [w] [w.time],|when the moon came up,} [h] {brushed [h.his] teeth|put on [h.his] pajamas} and {got into bed|crept under the blanket}. [g] {read a story|sang a song} and {left|went downstairs}. {But sleep did not come|[h]'s eyes stayed open}.

[h] {turned to the left and to the right|counted sheep up to [n]|looked at the ceiling}. {It did not help|Nothing helped}. [h.He] held the [t.color] [t] {close|very tight}.
{the pillow was too warm|the bed was too soft}, {the night too long|then too hard}. [h] {pulled|held} the [t.color] [t] {to [h.his] chest|close to [h.his] ear}{ and told it a secret|}.

<suddenly> there was [x]. {[h]'s heart jumped|What could it be?|[h] did not dare to breathe}. {There it was again!|It did not go away.}
then [h.he] {noticed|became aware of} something: [x]! {In the dark, everything seems bigger|Was it a monster?|[h]'s hair stood on end}.

@?
[h] {hid under the blanket|pulled the blanket over [h.his] head} and {counted to ten|lay very still}. {One toe stuck out|It got hot under there}.
"{Go away!|Who is there?|Is somebody there?}" {whispered|said} [h]. {No answer came|It was quiet for a second}.
"{It is nothing|I am big|I am not afraid}," [h] told the [t]. But {[h.his] voice shook|[h.his] knees were like jelly}.

"[G]!" [h] <cried>. {Quick steps came up the stairs|The door opened|A light went on}. "{What is the matter|Why are you not asleep|Did you have a bad dream}?" asked [g]. [h] {pointed into the dark|told [g.him] about [x]}.
[h] could not {stand it|wait} any longer. {On bare feet|Quick as a mouse}, [h.he] ran to [g]. "{There is something in my room|Please come|I am scared}!" [g] {took [h.his] hand|was not angry}.

@p
"{Let us look together|We will find out|Things are less scary when you know them}," said [g]. {Hand in hand, they|With a small lamp, they} {went closer|looked around}. And what was it? It was only [y]!
they {tiptoed|went} back {side by side|with a candle}. [g] {held up the light|opened the curtain}. {It was [y], and nothing else|It was only [y]}!

{[h] began to laugh|[h] let out a breath|[h.He] felt a little silly}. "{So that is all|You gave me a fright|I thought it was a monster}!"
"{Only that|That is all}?" said [h]. {They looked at each other and laughed|[g] winked}. "{At night, our ears and eyes make up stories|The dark is only the day with its eyes shut}," [g] <said>.

@?
[g] {brought a glass of warm milk|left the door open a bit|sat on the edge of the bed}. {They talked in low voices|[g.He] told about the time when [g.he] was small|Outside, an owl called}.
"{I was afraid of the dark as well|When I was little, I hid in the closet}," {said|admitted} [g]. "{You|Really}?" {[h] could hardly believe it|[h] made big eyes}.

@p
{back in bed|under the warm blanket}, [h] {said good night to it|listened again}. {Now it sounded almost friendly|It was not scary anymore}. [h.His] eyes {got heavy|closed}.
[g] {tucked [h.him] in|kissed [h.his] nose} and hummed {an old tune|softly}. {One line, two lines, and|Before the song was over,} [h] was asleep.

{the moon|a star} {looked in at the window|moved over the roof}, {and all was still|and the [t] kept watch}.
{in [h.his] dream|that night}, [h] {flew over [p]|sailed on a cloud|danced with the stars}. {Good night|Sleep well}, [h]!

PLOT cooking # any # dry # [x]
LET x y z: a soup ~ carrots ~ salt / a cake ~ eggs ~ sugar / a pie ~ plums ~ flour / pancakes ~ milk ~ butter / bread ~ flour ~ yeast / a pizza ~ tomatoes ~ cheese / an apple cake ~ apples ~ cinnamon / cookies ~ nuts ~ honey / jam ~ berries ~ sugar / a stew ~ beans ~ onions
Q: What did they cook? ; What did [h] want to make? # It was *. ; *. # [x] # {tea|rice} / {an omelet|noodles} / {fish|popcorn} / {ice cream|porridge}
Q: What was missing? ; What did they not have? # It was *. ; There was no *. # [z] # {pepper|water} / {chocolate|lemon} / {garlic|paprika} / {vanilla|mustard}
Q: For whom did they cook? # It was for *. # [g] # [f] / the {king|queen} / the {teacher|baker} / the {doctor|farmer}
Q: Who gave them what was missing? ; Who helped them out? # It was *. # [e] # who
Q: What fell on the floor? # It was *. # the bowl # the {lamp|clock} / the {chair|book} / the {cat|hat} / the {plant|picture}

@p
[w.when] [g] {had a cold|was tired from work|was in bed with a fever}. "{Let us make something nice|I want to cook for [g]|We could cook}," said [h] to [f.intro]. "{How about|What about} [x]?"
it was [g]'s {birthday|special day}. [h] and [f.intro] {had a plan|stood in the kitchen|put their heads together}: {they wanted to make [x] for [g.him]|they would make [x] as a surprise|why not make [x]|the surprise would be [x]}.

they {washed their hands|put on aprons} and {got out the big bowl|took the [t.color] pot}. {[h] read the recipe|The recipe was in an old book}. "{We need|First take} [y] and [z]," {[h.he] said|it said}.
[f] {found|brought} [y]. [h] {got the big spoon and the bowl|stood on a chair to reach the bowl}. "{What else|And now}?" "{Some|We need} [z]," said [h].

but {there was no [z] in the house|the [z] jar was empty}! They looked [i.at] and [i2.at]. "{What now?|We cannot make it without that!}" said [f].
"{Where is the [z]|Do you see the [z]}?" {They opened every box|They looked high and low}. There was {none left|not a bit}. {What a pity!|[h] bit [h.his] lip.}

[h] {ran|went} to [e]. "{Please, do you have some|Could you lend us some} [z]?" [e] {smiled|laughed}. "{For you, always|Of course}! {But save me a bite|Bring me a taste}," [e.he] said.
"{Let us ask [e]|[e] may have some}!" said [f]. And so it was: [e] {gave them a full cup|had more than enough} and {wished them luck|wanted to know what it was for}.

@p
{then they mixed|they stirred} and {mixed|stirred}. {Flour was on [h]'s nose|[f] sang a cooking song|A bit landed on the wall}. {It smelled|It looked} <good>.
[h] {cut|poured} and [f] {stirred|counted the spoons}. "{Not so fast|A little more|Let me taste}!" {said|laughed} [f]. {Soon there was a mess everywhere|They had it on their sleeves and in their hair}.

then, {crash|bump}! {An elbow hit the bowl|[h] turned too quickly|[f] slipped}, and the bowl {fell on the floor|was on the floor}. {Half of it was lost|What a mess}!
{<suddenly> the bowl slid|the bowl was wet and slid} {from the table|out of [h]'s hands}. {Splash|Smash}! It lay on the floor, {and [f] stared at it|in a puddle}.

@?
{"It was my fault," said [h].|Tears came to [h]'s eyes.} "{No, it can happen to anyone|We still have half of it|Never mind}," said [f]. {They wiped the floor together|They took the mop and cleaned up}.
"{Now it is all over|It is ruined}!" {cried|said} [h]. [f] {looked into the pot|thought for a moment}. "{There is enough left for a small one|We can start again}!"

so they {began once more|took what was left}, {slowly this time|with more care}. {The fire was warm|The kitchen got hot}, and {they waited and watched|the minutes went by}. {At last it was done|"It is ready!" said [f]}.
{this time, one held the bowl and the other stirred|they tried again}. {Then it had to get hot|It had to cook for half an hour|Over the fire it went|After that, there was nothing to do but wait}. {They told each other riddles|They set the table with a [c] cloth}.

@p
[g] came {in|to the table} and {sniffed the air|rubbed [g.his] eyes}. "{What smells so good|Is that for me}?" [h] and [f] {carried it in|bowed like waiters}: [x]! [g] {took a bite|tasted it} and {closed [g.his] eyes|smiled}. "{This is the best I ever had|Wonderful|You are real cooks}!"
they {put it on a tray|carried it to [g]}. "{Surprise|This is for you}!" There was {only a small bit|not much} of it, but [g] {ate it all|licked the spoon}. "{I could eat this every day,|It tastes of love,|May I have more?}" [g.he] said.

@?
[e] {got [e.his] bite, too|came by, as promised}, {and asked for the recipe|and had two helpings}.
then {they all washed the dishes|[g] looked at the kitchen and laughed}: {one washed, one dried, one sang|there was even some on the lamp}!

"{Small things made with love taste best|It need not be perfect to be good}," {said [f]|said [g]}.
"{Tomorrow I will cook for you,|What shall we cook next?|Next time we hold the bowl with four hands,}" {said|laughed} [f].
[h] {wrote the recipe on the wall|drew the recipe in a book}{, with a warning about the bowl|}.

PLOT a new friend # child # dry # [f]
LET x y: a drawing of a whale ~ whales / a model plane ~ planes / a book about dinosaurs ~ dinosaurs / a box of beetles ~ beetles / a map of the stars ~ stars / a paper dragon ~ dragons / a song about trains ~ trains / a card with a tiger ~ tigers
Q: What was the name of the new child? ; Who was new? # It was *. ; The new child was *. # [f] # who
Q: What did [h] and [f] both like? ; What did the two friends love? # They both liked *. # [y] # {trucks|rockets} / {horses|snakes} / {cats|mice} / {castles|robots}
Q: Where did [f] stand alone? ; Where did [h] meet [f]? # It was *. # [p.at] # place
Q: Why was [f] sad? # Because [f.he] *. # knew nobody # had a cold / broke [f.his] cup / lost [f.his] dog / was hungry

@p
[w.when] there was a new child {next door|in the street|in town}: [f], a {shy|quiet|nervous} [f.kind]. {[f.He] came from far away|[f.He] spoke very softly|Nobody had ever seen [f.him] before}. [f.He] knew nobody.
a family moved into the house {next door|across the street}. [w.when] their [f.kind] came {outside|out}. [f.He] was called [f], and [f.he] knew nobody.

[f] stood alone [p.at] and {looked at [f.his] shoes|drew lines in the sand|watched the others}. {Everybody else had somebody to play with|Nobody said hello|A ball rolled by, but [f.he] did not kick it}.
while {all the others|the rest} {ran about|laughed and shouted}, [f] {sat|stood} alone [p.at], {with a sad face|quiet as a mouse|hugging a bag}.

@?
[h] {saw it|noticed}. {Once, [h.he] had been new, too|[h.He] knew how that felt}. "{Somebody should talk to [f.him]|I wonder what [f.he] is like}," [h.he] thought.
"{Who is that|Why does [f.he] not play}?" [h] asked [g]. "{Perhaps [f.he] waits for somebody to say hello|Go and find out|It is hard to be new}," said [g].

so [h] {went up to [f.him]|walked over}. "{Hello! I am [h]|Hi, my name is [h]}. {What is your name|Who are you}?" {At first there was no answer|[f] turned red}. "[f]," {came the answer, very softly|[f.he] whispered}.
[h] {took all [h.his] courage and went over|sat down beside [f.him]}. "{Do you want some [d]|Are you new here|May I sit here}?" [f] {nodded|said yes in a tiny voice}{, and then it was quiet again|}.

@?
what should [h] say now? {[h.He] told a joke, but it was not a good one|[h.He] talked about the weather}. [f] {smiled a little|only shrugged}.
they {looked at the clouds|sat there without a word}. {It was a bit strange|It was not easy to begin}.

@p
then [h] saw {something in [f.his] bag|something that [f.he] had with [f.him]}. It was [x]! "{Do you like [y]|Are you a fan of [y]}? {I love them|Me, too}!" [h] <cried>. {[f]'s eyes grew wide|[f]'s face changed at once}.
{<suddenly> something fell from [f]'s bag|the wind blew open [f.his] bag}, and there was [x]! "{I know everything about [y]|[Y] are the best}!" {said|cried} [h].

"{You like [y]|Really|You, too}?" {asked|said} [f]. {And now the words came, one after another|[f.He] talked faster and faster}. {They forgot the time.|Who would have thought that [f] could talk so much?}
now [f] {laughed for the first time|was not shy at all}. "{I have a hundred pictures of them at home|I know a game with them|Let me show you}," [f.he] said.

@?
[h] {took [f]'s hand|called the others}. "{This is [f]. [f.He] plays with us|Come and meet [f]}!" {Soon there were five of them|The others made room|They all said hello}.
[f] taught [h] {a word|a clapping game} from {the place where [f.he] came from|far away}. {It sounded funny|[h] said it wrong three times}, and they {laughed|rolled in the grass}.

@p
{from then on|after that day}, the two {walked to school together|sat side by side|met by the gate each morning}. {They talked about [y] all the time|Nobody was alone anymore}.
in the evening, [f] {told [f.his] family|wrote a letter}: "{I have a friend|Today somebody said hello}!" {And [h] told [g] the same|There was joy in two houses that night}.

{one hello can change a whole day|every friend was new once|a friend can hide behind a shy face}{, thought [h]|}.
"{I am so glad that you said hello|I was afraid that nobody would talk to me}," [f] said {later|one day}. "{I am glad that you answered|And now you never stop talking}!" {laughed|answered} [h].

PLOT a contest # any # sunny # a contest
LET x y z: the best drawing ~ a drawing of the moon ~ paint / the best flag ~ a flag with stars ~ thread / the funniest hat ~ a hat with bells ~ glue / the best puppet ~ a puppet with wings ~ buttons / the nicest cake ~ a cake like a castle ~ cream / the tallest tower ~ a tower of cups ~ tape / the prettiest kite ~ a kite like a fish ~ string / the best mask ~ a mask of an owl ~ feathers
Q: What was the contest about? ; What would win the prize? # It was about *. ; *. # [x] # the {loudest|longest} {shout|yawn} / the {fastest|best} {horse|swimmer} / the {smallest|oldest} {shoe|book} / the {cleanest|warmest} {room|coat}
Q: What did [h] make for the contest? # It was *. ; [h] made *. # [y] # a {statue|poem} of a cat / a {dance|story} about bees / a {basket|lamp} of straw / a {ship|train} made of bread
Q: Who was the judge? # The judge was *. # [e] # who
Q=a: Who won the contest? # * won. ; It was *. # [h] # who
Q=b: Who won the contest? # * won. ; It was *. # [f] # who
Q: Where was the contest? # It was *. # [p.at] # place

@p
{a paper hung on the wall|everybody talked about the same thing}: there would be a contest [p.at] for [x]! [e] was the judge. {[h] read it twice|"I will take part!" said [h]}.
"{Who can make|Who has} [x]?" {asked|called} [e], the judge. {On [w.day], everyone would meet|They would all meet} [p.at]. {[h]'s head was full of ideas at once|[h] wanted to try}.

[h] {thought for a whole day|had an idea in the bath|lay awake and thought}. It had to be special. Then {it was clear|[h.he] knew}: [y]!
"{Mine will be|I will make} [y]," [h] told [g]. "{Nobody else will have that|That is a fine idea}!" [g.he] said.

[f.intro] {took part as well|wanted to win, too}. {[f.He] would not say what it was|[f.His] door was closed all week|"Mine is a secret," said [f]}.
[f.intro] {had the same plan|joined in}. {The two worked side by side|They promised not to look|"May the best one win," they said}.

@?
{every evening|day after day}, [h] {worked on it|practiced}. {Some days it went well|It went wrong twice}, and {some days it did not|then it went right}. {[g] had to call three times for supper|[h] even forgot to eat}.
the work was {slow|hard}. [h] {stuck [h.his] tongue out while working|had to begin again [n] times}.

but the night before, [f] {came to the door, pale|knocked, close to tears}. "{I have no [z] left|My [z] is all gone}! {Now I cannot finish|Without it I cannot be in the contest}."
then, {one day before|just before the end}, [f] ran out of [z]. "{The shop is closed|Nobody has any}! {I must give up|All that work for nothing}," [f.he] {said|sobbed}.

[h] had {some|just enough}. {If [f] could not finish, [h] might win|It would have been easy to say no}. But {that is not how friends are|winning like that would be no fun}. "{Take half of mine|Here, we share it}," [h] said.
[h] {looked at [h.his] own [z]|did not think for long}. "{I still have some|You can use mine}. {I want a fair contest|It is more fun with you}," [h.he] <said>. [f] {hugged [h.him]|could not find words}.

@p
{the big day came|then it was time}. [p.At] {stood long tables|flags were flying|there was a crowd}. [e] {went from one to the next|looked at everything through a glass|took a lot of time}. {"Hm," [e.he] said, and, "Oh!"|Nobody could tell what [e.he] thought}.
{on [w.day]|on that day}, they all {stood in a row|waited} [p.at]. [h]'s {hands were wet|tummy was full of butterflies}. [e] {walked up and down|made notes in a small book} and {smiled|said nothing}.

@=a
"{The winner is|The prize goes to} [h]!" {said|called} [e]. {[h] looked behind [h.him] to see if there was another [h]|It took [h] a moment to understand}. {What a cheer!|Everybody clapped.}
{a drum was beaten|it got very quiet}. "[H]!" {called|said} [e]. "{I have never seen anything like it|This is truly special}." {[h] won|So [h] won}, {and blushed|and nearly fell over}!

@=a
[h] {called|pulled} [f] to the front. "{Your work is great, too|We were a good team}!" The prize was {a basket of [d]|a big box of [d]}, and {they ate it together|of course they shared it}.
"{You won because it was the best|I am happy for you}," said [f], {and [f.he] meant it|with a big smile}. {The prize, a bag of [d], was soon eaten by two|They carried the prize home together}.

@=b
"{The winner is|The prize goes to} [f]!" {said|called} [e]. {For a second, [h] was sad|[h] felt a little sting}. But {then [h.he] clapped as loud as [h.he] could|[f]'s face was so happy that [h] had to smile}.
{it got very quiet|a bell rang}. "[F]!" {said|called} [e]. [f] won, {and could not believe it|and jumped up like a frog}. {[h] swallowed, and then [h.he] cheered|[h] was the first to shake [f.his] hand}.

@=b
"{Wait|Please listen}," said [f] {to everyone|in a loud voice}. "{Without [h], I could not have finished|[h] gave me half of the [z]}. {Half of the prize is yours|We won this together}!"
[f] {took the prize, a basket of [d],|held up the prize} and {put it between them|went straight to [h]}. "{One for you, one for me|You are the real winner}," [f.he] said.

{to win is nice, but a friend is nicer|the best prize is a good friend|it feels good to play fair}{, everybody agreed|}.
[g] {hung|put} {a paper star|a paper medal} on [h]. It said: {"for a big heart"|"well done"}.
"{What shall we make next year?|Next year, I will beat you,|Let us work together next time,}" {said [h]|they said} and {laughed|began to plan}.

PLOT the truth # child # dry # a broken [v]
LET v x: vase ~ a ball / pitcher ~ a marble / lamp ~ a jump / plate ~ an elbow / mirror ~ a slingshot / jar ~ a somersault / teapot ~ a pillow fight / picture frame ~ a wild dance
Q: What did [h] break? ; What broke? # It was a *. ; A *. # [v] # chair / door / guitar / clock
Q: How did it happen? ; What did it? # It was * that did it. # [x] # a {cat|goat} / a {storm|train} / a {nail|hammer} / a {mouse|bear}
Q: Who got the blame at first? # It was *. ; * got the blame. # [f] # stranger
Q: Where did [h] hide the pieces? # [h.he] hid them *. # [i.at] # inside
Q: What color was the [v]? # It was *. # [c] # color

@p
[w.when] [h] was {alone in the room|playing inside|a little too wild}. "{Not in the house|Please be careful}," [g] had said. {But who remembers that?|But it was so much fun.} Then, crash! It was [x] that did it, and the [c] [v] {was broken|lay in pieces}.
[g] had a [c] [v], {very old and dear|a gift from long ago}. [w.when] it happened: [x], a {crash|bang}, and the [v] was {broken|in a hundred pieces}. {It was [h]'s fault|[h] had done it}.

{[h] stood still as a stone|[h]'s heart beat like a drum}. {What now?|Nobody had seen it.} [h.He] {picked up the pieces|swept the pieces up} and hid them [i.at].
"{Oh no!|What will [g] say?}" [h.he] {whispered|thought}. Quickly, [h.he] {put the pieces into a bag|gathered every piece} and hid {everything|it all} [i.at].

@?
[h.he] {sat down with a book|pretended to draw}, but {the letters danced|[h.his] hand shook}. {Each step on the stairs made [h.him] jump|The clock ticked so loudly}.
then [h.he] {washed [h.his] hands|whistled}, {as if nothing had happened|just like any other day}.

@p
when [g] {came home|came in}, [g.he] {saw the empty place|stopped}. "{Where is my [v]|What happened to the [v]}?" {Just then|At that moment}, [f.intro] {came in with a broom|was in the hall}. "{Was it you, [f]|[f], did you do this}?" asked [g].
"{Who broke my [v]?|My [v] is gone!}" [g] <cried>. [f.intro] was {visiting|there, too}, and {once [f.he] had broken a cup|[f.he] stood closest}. "[f]! {How could you|You should be more careful}!" said [g].

"{No, not me|I did not do it}!" said [f], {and [f.his] lip shook|with tears in [f.his] eyes}. {But nobody believed [f.him]|It sounded as if nobody would believe it}. [h] {said nothing|looked at the floor}.
[f] {turned white|shook [f.his] head}. "{It was not me, I promise|I have only just come}," [f.he] said. [h] {felt sick|wanted to sink into the ground}.

@?
{the lie sat in [h]'s tummy like a stone|[h]'s ears were burning}. {It is bad to break a thing, but it is worse to let a friend take the blame|[f] was a friend, and friends do not do that}.
at the table, {[h] could not eat a bite|the soup tasted of nothing}. {[f] did not eat, either|[f] sat in the corner}.

then [h] {stood up|could not bear it anymore}. "{Stop! It was me|It was not [f]. I did it}," [h.he] {said|cried}. {Everything came out|And [h.he] showed where the pieces were}. "{I was afraid that you would be angry|I am so sorry}."
"[G]?" said [h] {in a small voice|and took a deep breath}. "{I must tell you something. [f] did not do it|It was me}." {The words were hard to say|One tear fell, then another}.

@p
[g] {was quiet for a long time|sat down}. "{I am sad about the [v]|It was only a thing}, but {I am glad that you told me|the truth matters more to me}," [g.he] said. {Then [g.he] hugged [h.him]|[G.he] wiped the tears away}.
"{Thank you for being honest|That was brave}," {said|answered} [g]. "{Things can be fixed; trust is harder|A thing is only a thing|I was angry, but a lie would hurt me more}."

[h] {went to|turned to} [f]. "{Please forgive me|I should have said it at once}." {"That was mean," said [f], "but you told the truth in the end."|[f] thought about it, then nodded.} {They shook hands on it|Now both could smile again}.
"{I am sorry, [f]|[f], I was a coward}," said [h]. "{Next time, say it faster|Fine, for your biggest cookie|That hurt me, but we are still friends}," said [f]. {And so it was|That was fair}.

@?
with a lot of glue, {they put the pieces together again|the [v] was made whole}. {It looked a bit funny|One piece was missing}, but [g] {liked it even more|kept it in its old place}.
[h] {helped in the house all week|saved [h.his] coins} {to pay for a new one|to make it good}.

{a small truth is better than a big lie|the truth may be hard, but it makes the heart light}.
that evening, [h] {felt as light as a feather|could sleep}, {for there was nothing left to hide|and no stone lay in [h.his] tummy}.

PLOT a snowy day # any # snow # a snowman
LET x y: a carrot ~ a pot / a pine cone ~ a straw hat / an old spoon ~ a bucket / a red pepper ~ a flower pot / a stick ~ a crown of twigs / a cork ~ a cap
Q: What was the nose of the snowman? ; What did the snowman have for a nose? # It was *. ; *. # [x] # a {button|stone} / a {banana|lemon} / a {coin|shell} / a {feather|leaf}
Q: What was on the head of the snowman? # It was *. # [y] # a {cup|boot} / a {bell|book} / a {cake|bowl} / a {nest|lamp}
Q: What did [h] give to the snowman? # It was *. # the [t.color] scarf # the [u.color] scarf / the [c] coat / a {ring|flag} / a pair of {shoes|gloves}
Q: Who built the snowman with [h]? ; Who helped [h]? # It was *. ; * did. # [f] # who
Q: What did they find in the snow? ; Who was cold in the snow? # It was a *. # [a] # {fox|wolf} / {cow|pig} / {goat|sheep} / {snake|bear}

@p
when [h] woke up, {everything was white|the whole world was quiet and white}. Snow! {It was the first snowy day of the year|At last it was a snowy day|What a snowy day it was}. {[h] was outside before breakfast|[h] put on two pairs of socks|Even the roofs had white hats}.
{one [w] [w.time],|on a [w] [w.time],|one winter [w.time],|early one [w] [w.time],} {big white flakes fell from the sky|snow lay as high as [h]'s knees}. "{Snow, snow|Wake up, it has snowed}!" [h] <cried>. [h.He] {put on boots, mittens and the [t.color] scarf|jumped into [h.his] boots}.

[f.intro] {was already outside|came stamping through the snow|threw a snowball over the fence}. "{Let us make a snowman!|Shall we build one, as big as we can?}" {[f.he] said|[f.he] called}. {[h] did not need to be asked twice.|What a question!}
with [f.intro], [h] {made angels in the snow|slid down the hill on a tray}. Then they {wanted to build a snowman|had an idea: a snowman}!

they {rolled one big ball, then a smaller one|pushed and rolled until the ball was as high as [f]}. "{It is so heavy|One, two, up|Push}!" {Puff, puff!|Their breath made little clouds.} <soon>, {there he stood|it had a head, too}.
the first ball {broke in two|rolled down the hill all by itself}, {and they laughed so hard that they fell over|so they had to start again}. The second one {was better|was just right}{, big and round|}.

for a nose they took [x], and [y] {was his hat|went on top}. {Two stones became the eyes|His mouth was made of nuts}. "{He needs something warm|He looks cold}," said [h] and {gave him|put around his neck} the [t.color] scarf.
[f] brought [x] for the nose and [y] for {the|his} head. [h] {took off|gave away} the [t.color] scarf. "{So he will not freeze|This is for you, Mr. Snow}," [h.he] said.

@?
{[g] looked out and waved|[e] walked by and lifted [e.his] hat to the snowman}. "{What a fine fellow|He looks like me}!" {Everybody laughed|They bowed}.
"{What is his name?|He must have a name,}" said [f]. "{Mr. Winter|Frosty Bob|Captain Cold}," {[h] decided|said [h]}.

@p
then, {as it got late|a little later}, they heard {a tiny sound|something}. {Under the white bush|Behind the snowman} sat a [a.size] [a], {shaking with cold|with ice on its nose}. "{It will freeze|The poor thing|It must get warm}!" {said|cried} [h].
but {what was that|something lay|somebody sat} in the snow{, hardly moving|, right in front of them|}: a [a.size] [a]! {It was very cold|It had lost its way in the white}. "{We have to help it!|Is it alive?}" said [f].

[h] {looked at the snowman|had an idea}. "{He will not mind|You do not need it tonight, old friend}," [h.he] said, took the scarf back and {wrapped the [a] in it|made a warm nest of it}. {Soon it stopped shaking|Two dark eyes looked out of the wool}.
[f] {warmed it with [f.his] hands|breathed on it}, and [h] {ran to the snowman for the scarf|brought the scarf}. {Rolled up like a bun|Inside the scarf}, {it got warm|it fell asleep}.

they {carried it home|took it inside}, where [g] {put it near the stove|gave it crumbs and warm milk}. {After an hour it was well again|Later it ate from [h]'s hand}.
at home, {it slept by the fire|it got some [d]} until {the sun came out again|the snow was gone}. {Then it went back to its family|Then it went off, and looked back once}.

@?
and the snowman? {The next morning there were tiny tracks all around him|He got a new scarf from [g]}. {Perhaps somebody had come to thank him|He seemed to smile}.
when the sun came, {the snowman got smaller day by day|he melted}. "{See you next winter|Goodbye, old friend}," said [h] {and kept the hat|and was not sad}.

{with hot cocoa in their hands|wrapped in blankets}, [h] and [f] {watched the snow fall|listened to the wind}. {It was cold outside, but warm in their hearts.|What could be better?}
"{Snow is cold, but kindness keeps you warm|Even a snowman can share}," {said [f]|they said}.

PLOT a treasure map # any # dry # an old map
LET x y z v: a box full of old toys ~ under the roots of a tree ~ seven steps ~ a compass / a jar of marbles ~ below a flat stone ~ nine steps ~ a lamp / a chest with costumes ~ at the end of a tunnel ~ five steps ~ a rope / a tin of old coins ~ inside a broken well ~ ten steps ~ a ladder / a bag of glass beads ~ under the floor of a hut ~ four steps ~ a hammer / a letter and a golden ring ~ behind a waterfall ~ six steps ~ a raincoat
Q: What was the treasure? ; What did they find? # It was *. ; *. # [x] # a {heap|pile} of {bones|leaves} / a {crown|sword} / a {basket|sack} of {apples|potatoes} / a {sleeping|baby} {dragon|bear}
Q: Where was the treasure? # It was *. # [y] # on top of a {roof|mountain} / in a {pocket|kitchen} / under a {bed|carpet} / inside a {cake|shoe}
Q: Where did [h] find the map? # It was *. ; [h] found it *. # [i.at] # inside
Q: What did they take along? ; What did [f] bring? # It was *. # [v] # a {guitar|pillow} / a {kettle|clock} / a {mirror|chair} / a {goat|broom}
Q: Who had made the map? # It was *. # [g] # who

@p
[w.when] [h] found {a piece of old paper|something yellow and dusty} [i.at]. It was a map, with {lines, trees and a big cross|a red cross on it}! "{A treasure map!|Can it be true?}" [h.he] {whispered|cried}.
{it was too dull to do nothing|there was nothing to do}, so [h] {cleaned up|looked around}. [w.when] [h.he] {saw|found} a map [i.at]! It {showed the way to a cross|smelled of dust and secrets}.

[h] <ran> to [f.intro]. "{Look what I have|You will not believe this}!" {[f] turned it around and around|They bent over it}. "{We need|Let us take} [v]," said [f], {who liked to be ready|and fetched it}.
"{Who comes with me?|I cannot go alone!}" said [h]. [f.intro] {was there at once|needed no time to think} and brought [v]{, just to be safe|}.

first the {line|way} led {past [p]|along the wall}. {"Turn left," [h] read|They followed it with one finger}. {A crow watched them|The grass got higher and higher}.
off they went, {past [p]|through a gap in the hedge}. {"Which way is north?" asked [f]|At each tree they looked at the map}.

@?
<suddenly> {the wind tore the map away|the map flew off}! [h] {jumped|ran} and {caught it|got it} {by one corner|just above a puddle}. "{That was close|Hold on to it}!" said [f].
then the path {ended|split in two}. {Left or right?|Back or on?} "{I am lost|I think we went wrong}," said [f]. [h] {turned the map upside down|looked again}. "{Now it makes sense|Oh, I held it the wrong way}!"

@?
{something rustled|a twig cracked}. {Was it a pirate?|They held hands.} But it was only {a fat hen|a goat that had run away|a squirrel with a nut}.
[f] {wanted to go home|was tired}. "{Only a bit farther|We are so close}," said [h] {and gave [f.him] some [d]|and pulled [f.him] along}.

@p
"{From here, it is [z]|Now we walk [z]}," {read|said} [h]. {They counted out loud|They took big steps}. And there was the place: [y]! {With [v], it was easy|Good that they had [v]}.
[z] {more|to go}, the map said. {They counted, and the last one ended|One after another they counted them, and came to a stop} {right in front of it|at the cross}. It had to be [y]. {Without [v] they would not have got there|Here [v] was of great use}.

they {dug and pulled|reached in} until {something knocked|their fingers touched something}. {Their hearts stood still.|"I have it!" cried [f].} {Into the light came|It was} [x]!
{slowly, slowly|with both hands}, [h] {opened it|pulled it out}. {They blinked|Their hands shook}. There lay [x]! {It was more than they had dreamed of|They danced in a circle}.

@p
at home, [g] {smiled in a strange way|laughed until tears came}. "{So you found it|At last}! {I hid that when I was as small as you|It was I who drew that map, long ago}." {[h]'s mouth fell open|Nobody had guessed that}.
{there was a name on the back of the map|in a corner stood a name}: [g]'s! "{I made it when I was little|I wanted to see if somebody would ever find it}," [g.he] said{ and winked|}.

@?
{they shared everything, half and half|each of them could choose first once}. {Then they hid it again, for others to find|One piece went to [e], because [e.he] had never seen such a thing}.
the next day, [h] {drew a new map|sat down with paper and ink}. {Who will find it one day?|This time, the cross is in a place that nobody knows.}

"{The best part was the way there|The real treasure was the fun}," said [f]. {[h] had to agree|"And the treasure," said [h] and laughed}.
{keep your eyes open|look twice}: {there may be a map in your house, too|you never know what lies around the corner}.

PLOT a lost little animal # any # dry # a lost [a]
LET x y: followed the sound of a bell ~ bell / looked for small tracks in the mud ~ tracks / asked everyone on the road ~ road / climbed up to look around ~ look / sang so that the mother might hear it ~ song / walked along the stream ~ stream
Q: What was lost? ; Who had lost its mother? # It was a little *. ; A *. # [a] # {fox|calf} / {goat|pig} / {bear|deer} / {cat|horse}
Q: Where did [h] find the little [a]? # It was *. # [s.at] # spot
Q: Where was the mother? ; Where did they find its mother? # She was *. # [p.at] # place
Q: What did they do to find the mother? # They *. # [x] # {called the police|wrote a letter} / {took a train|rang a doctor} / {dug a deep hole|lit a fire} / {waited in bed|read a book}
Q: Who helped [h] to look for the mother? # It was *. # [f] # who

@p
[w.when] [h] {stepped outside|was on the way home} and heard {a small voice|crying}. It came from a little [a] [s.at]. "{I want my mother!|Where is my mama?|I cannot find my mother!}" it {said|sobbed}.
{something small sat|somebody small was sitting} [s.at]. [w.when] [h] {saw it|came by and bent down}: it was a little [a], {and it was crying|shaking all over}. "{I am lost|I ran after a butterfly, and now I am lost}," it said.

"{Do not cry|Dry your tears|Do not be afraid}. {We will find her|I will help you|I know my way around here}," said [h]. {The little one sniffed|It took hold of [h]'s sleeve}.
[h] {sat down beside it|gave it a bit of bread}. {"What does she look like?" "She is {soft and warm|the most beautiful of all},"|"When did you see her last?" "This morning,"} {said the little one|was the answer}.

@?
[h] looked {left and right|all around}, but {nobody was there|the mother was not there}. [h] {scratched [h.his] ear|thought about it}. "{Well, let us go and look|Come, we will find somebody who knows more}."
first they {went to [p2]|asked a snail}. {"No, I am sorry," was the answer|Nobody there had seen her}.

on the way they met [f.intro]. "{I have good ears|I have a good nose for such things|I know every path}," said [f]. "{Let me come with you|Three find more than two}."
"{Can you help us|Have you seen its mother}?" [h] asked [f.intro]. "{No, but I will come along|Not today, but let us think}," [f] <said>.

together they [x]. {It was a long way|They did not give up}. {When the little one got tired, [h] carried it|It got later and later}.
so they [x]. "{Listen|Wait|Hush}!" said [f] {again and again|once}, but {it was only the wind|it was only a woodpecker}.

@?
"{What if we never find her|Maybe she does not look for me}?" {asked|whispered} the little one. "{A mother always looks|She will be so happy to see you}," [h] said {firmly|and stroked its head}.
to cheer it up, {[f] made funny faces|[h] told a story about [d]|they sang the song of the three fleas}. {It giggled|Soon it smiled a bit}.

@p
{then|<suddenly>} {they saw something|a call came through the air}. {Somebody ran to and fro|There she stood}, [p.at]! "{Mama|That is her}!" {cried the little one|it squeaked}. "{My baby|My dear child}! {I looked for you everywhere!|Where have you been?}"
and at last, [p.at], {a voice called|somebody was calling}. It was the mother! {The little one ran as fast as it could|Nothing could hold the little one now}. {They rubbed noses|She held it and would not let go}.

"{How can I thank you?|You brought back my treasure!}" said the mother. "{It was nothing|We were glad to help}," {said [h]|[h] and [f] said}. {She gave them [n] [d]|She told them they could always visit}.
the mother {looked at [h] and [f]|bowed}. "{You did not walk by|You have good hearts}. {I will not forget that|Come to dinner with us}!" {There was soup for all|They stayed until the moon was up}.

@?
"{And you|Little one}, {stay close to me from now on.|what do we say?}" "{Thank you|I will never run off again}!" {said the little one|it promised}.
[h] waved {until they were gone|for a long time}. {[h.He] was happy and a bit sad at once|Then it was quiet}.

on the way back, [h] {thought of [h.his] own [g.kin]|walked a little faster}. {At home [h.he] got a long hug|At the door, [h.he] {called "I am home!"|stopped and smiled|heard supper cooking}}.
{to help somebody home is a fine thing|nobody is too small to help or to be helped}, {and [h] knew it|and [f] knew it, too}.
"""

COUNTED = (
    ("apple", "apples"), ("ball", "balls"), ("egg", "eggs"), ("cup", "cups"), ("duck", "ducks"), ("flower", "flowers"),
    ("book", "books"), ("fish", "fish"), ("star", "stars"), ("button", "buttons"), ("shell", "shells"),
    ("cookie", "cookies"), ("pencil", "pencils"), ("leaf", "leaves"), ("coin", "coins"), ("nut", "nuts"),
)  # fmt: skip

# Each table: questions, answers, rows (key, right value). "[k]" stands for the key, "*" for the value.
FACTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    "color": (
        ("What color is [k]?", "Tell me the color of [k].", "Which color does [k] have?"),
        ("[k] is *.", "It is *.", "The color is *."),
        (
            ("a banana", "yellow"), ("the grass", "green"), ("snow", "white"), ("a ripe tomato", "red"),
            ("the clear sky at noon", "blue"), ("a carrot", "orange"), ("milk", "white"), ("coal", "black"),
            ("a frog", "green"), ("a strawberry", "red"), ("chocolate", "brown"), ("a pumpkin", "orange"),
            ("a lemon", "yellow"), ("an elephant", "gray"), ("a polar bear", "white"), ("a fire truck", "red"),
            ("a cucumber", "green"), ("a flamingo", "pink"), ("a crow", "black"), ("a chick", "yellow"),
            ("a pig", "pink"), ("the inside of a watermelon", "red"), ("a swan", "white"), ("a leaf in summer", "green"),
            ("salt", "white"), ("a blueberry", "blue"), ("an orange", "orange"), ("a pea", "green"),
            ("spinach", "green"), ("the night sky", "black"), ("corn", "yellow"), ("wet earth", "brown"),
        ),
    ),
    "sound": (
        ("What sound does a [k] make?", "What does a [k] say?", "How does a [k] sound?"),
        ('A [k] says "*".', 'It says "*".', "The [k] goes *."),
        (
            ("dog", "woof"), ("cat", "meow"), ("cow", "moo"), ("duck", "quack"), ("sheep", "baa"), ("pig", "oink"),
            ("horse", "neigh"), ("bee", "buzz"), ("snake", "hiss"), ("lion", "roar"), ("owl", "hoot"),
            ("mouse", "squeak"), ("frog", "ribbit"), ("chick", "peep"), ("rooster", "cock-a-doodle-doo"),
            ("donkey", "hee-haw"), ("wolf", "howl"), ("crow", "caw"), ("turkey", "gobble"), ("bird", "tweet"),
        ),
    ),
    "opposite": (
        ("What is the opposite of [k]?", "Which word means the opposite of [k]?", "[k] is the opposite of what?"),
        ("The opposite of [k] is *.", "It is *.", "*."),
        tuple(
            pair
            for a, b in (
                ("hot", "cold"), ("big", "small"), ("up", "down"), ("fast", "slow"), ("day", "night"),
                ("happy", "sad"), ("open", "closed"), ("wet", "dry"), ("full", "empty"), ("old", "young"),
                ("hard", "soft"), ("loud", "quiet"), ("long", "short"), ("light", "dark"), ("left", "right"),
                ("in", "out"), ("near", "far"), ("clean", "dirty"), ("first", "last"), ("good", "bad"),
                ("thick", "thin"), ("rough", "smooth"), ("high", "low"), ("push", "pull"), ("strong", "weak"),
                ("early", "late"), ("awake", "asleep"), ("rich", "poor"), ("black", "white"), ("front", "back"),
                ("win", "lose"), ("start", "stop"), ("true", "false"), ("give", "take"), ("laugh", "cry"),
                ("above", "below"), ("brave", "afraid"), ("buy", "sell"), ("yes", "no"), ("sweet", "sour"),
            )
            for pair in ((a, b), (b, a))
        ),
    ),
    "use": (
        ("What is [k] for?", "What do we use [k] for?", "What can you do with [k]?"),
        ("It is there to *.", "You can * with it.", "[k] is there to *."),
        (
            ("a broom", "sweep the floor"), ("a pair of scissors", "cut paper"), ("an umbrella", "stay dry in the rain"),
            ("a bed", "sleep at night"), ("a pen", "write letters"), ("a clock", "tell the time"),
            ("a key", "open a lock"), ("a spoon", "eat soup"), ("a toothbrush", "clean your teeth"),
            ("a comb", "tidy your hair"), ("a hammer", "hit nails"), ("a lamp", "light a room"),
            ("a towel", "dry your hands"), ("a phone", "talk to people far away"), ("a saw", "cut wood"),
            ("an oven", "bake bread"), ("a fridge", "keep food cold"), ("a boat", "cross the water"),
            ("soap", "wash your hands"), ("a ladder", "climb up high"), ("a shovel", "dig a hole"),
            ("a needle", "sew clothes"), ("a camera", "take pictures"), ("a map", "find the way"),
            ("glue", "stick things together"), ("a watering can", "water the plants"), ("a drum", "make music"),
            ("a stove", "cook dinner"), ("a kite", "play in the wind"), ("a net", "catch fish"),
        ),
    ),
    "young": (
        ("What is a baby [k] called?", "What do we call a young [k]?", "What is the name for a baby [k]?"),
        ("A baby [k] is called a *.", "It is called a *.", "We call it a *."),
        (
            ("dog", "puppy"), ("cat", "kitten"), ("cow", "calf"), ("duck", "duckling"), ("sheep", "lamb"),
            ("horse", "foal"), ("chicken", "chick"), ("bear", "cub"), ("frog", "tadpole"), ("pig", "piglet"),
            ("goat", "kid"), ("deer", "fawn"), ("goose", "gosling"), ("kangaroo", "joey"), ("swan", "cygnet"),
        ),
    ),
    "home": (
        ("Where does [k] live?", "Where is the home of [k]?", "In what place can you find [k]?"),
        ("[k] lives *.", "It lives *.", "You can find it *."),
        (
            ("a fish", "in the water"), ("a bee", "in a hive"), ("a king", "in a castle"), ("a spider", "in a web"),
            ("a camel", "in the desert"), ("a penguin", "in the cold south"), ("a monkey", "in the jungle"),
            ("a mole", "under the ground"), ("a bird", "in a nest"), ("a farmer", "on a farm"),
            ("a snail", "in its shell"), ("a horse", "in a stable"), ("a whale", "in the ocean"),
            ("a wolf", "in the forest"), ("a pirate", "on a ship"),
        ),
    ),
    "sense": (
        ("What do you use to [k]?", "Which part of the body do you use to [k]?", "With what do you [k]?"),
        ("You use your *.", "I [k] with my *.", "We [k] with our *."),
        (
            ("see", "eyes"), ("hear", "ears"), ("smell", "nose"), ("bite", "teeth"), ("walk", "feet"),
            ("taste", "tongue"), ("think", "head"), ("clap", "hands"), ("hold a pencil", "fingers"),
        ),
    ),
    "legs": (
        ("How many legs does [k] have?", "How many legs are there on [k]?", "Count the legs of [k]."),
        ("[k] has * legs.", "It has * legs.", "There are *."),
        (
            ("a dog", "four"), ("a bird", "two"), ("a spider", "eight"), ("an ant", "six"), ("a horse", "four"),
            ("a person", "two"), ("a fish", "zero"), ("a snake", "zero"), ("a cat", "four"), ("a bee", "six"),
            ("a hen", "two"), ("a cow", "four"), ("a pig", "four"), ("a duck", "two"), ("a mouse", "four"),
            ("a beetle", "six"), ("a lion", "four"), ("a worm", "zero"),
        ),
    ),
    "count": (
        ("How many [k]?", "Tell me: how many [k]?"),
        ("The answer is *.", "*."),
        (
            ("days are in a week", "seven"), ("wheels does a bicycle have", "two"), ("months are in a year", "twelve"),
            ("fingers are on one hand", "five"), ("sides does a triangle have", "three"), ("eyes does a cat have", "two"),
            ("wheels does a car have", "four"), ("seasons are in a year", "four"), ("toes do two feet have", "ten"),
            ("noses does a child have", "one"), ("sides does a square have", "four"), ("moons does the Earth have", "one"),
            ("wings does a bird have", "two"), ("horns does a unicorn have", "one"), ("arms does an octopus have", "eight"),
            ("eggs are in a dozen", "twelve"), ("wheels does a tricycle have", "three"), ("tails does a dog have", "one"),
        ),
    ),
    "kind": (
        ("What is [k]?", "What kind of thing is [k]?", "Is [k] an animal, a fruit or something else?"),
        ("[k] is *.", "It is *."),
        tuple(
            (f"a {noun}" if noun[0] not in "aeiou" else f"an {noun}", kind)
            for kind, nouns in (
                ("a fruit", "banana apple pear cherry plum peach orange lemon"),
                ("an animal", "dog lion mouse horse rabbit elephant tiger wolf goat bear"),
                ("a toy", "doll puzzle kite puppet"),
                ("a vegetable", "carrot potato cabbage radish onion"),
                ("a piece of clothing", "coat shirt hat sock sweater scarf"),
                ("a piece of furniture", "chair table bed couch shelf"),
                ("a tool", "hammer saw rake shovel"),
                ("a bird", "crow robin penguin owl goose parrot eagle"),
                ("an insect", "bee ant fly butterfly beetle"),
                ("a vehicle", "car bus train truck tractor"),
                ("a musical instrument", "drum flute violin piano trumpet"),
                ("a flower", "rose tulip daisy sunflower"),
            )
            for noun in nouns.split()
        ),
    ),
    "job": (
        ("What does [k] do?", "What is the job of [k]?", "What kind of work does [k] do?"),
        ("[k] *.", "The answer: [k] *."),
        (
            ("a baker", "bakes bread"), ("a teacher", "helps children learn"), ("a doctor", "makes sick people well"),
            ("a farmer", "grows food"), ("a pilot", "flies planes"), ("a fireman", "puts out fires"),
            ("a dentist", "looks after teeth"), ("a cook", "makes meals"), ("a painter", "paints pictures"),
            ("a singer", "sings songs"), ("a sailor", "works on a ship"), ("a mailman", "brings letters"),
            ("a tailor", "makes clothes"), ("a fisherman", "catches fish"), ("a vet", "helps sick animals"),
            ("a gardener", "cares for plants"), ("a writer", "writes books"), ("a barber", "cuts hair"),
        ),
    ),
    "source": (
        ("Where does [k] come from?", "Where do we get [k] from?", "Who or what gives us [k]?"),
        ("[k] comes from *.", "It comes from *.", "We get it from *."),
        (
            ("honey", "bees"), ("wool", "sheep"), ("rain", "clouds"), ("bread", "flour and water"), ("paper", "wood"),
            ("an egg", "a hen"), ("cow milk", "a cow"), ("cheese", "milk"), ("daylight", "the sun"),
            ("jam", "fruit and sugar"), ("orange juice", "oranges"), ("a chicken", "an egg"), ("an oak", "an acorn"),
            ("silk", "silkworms"), ("smoke", "fire"),
        ),
    ),
    "feel": (
        ("How is [k]?", "What is [k] like?", "Which word fits [k]?"),
        ("[k] is *.", "It is *."),
        (
            ("ice", "cold"), ("fire", "hot"), ("sugar", "sweet"), ("a lemon", "sour"), ("a stone", "hard"),
            ("a pillow", "soft"), ("water", "wet"), ("a needle", "sharp"), ("thunder", "loud"), ("a snail", "slow"), ("a race car", "fast"),
        ),
    ),
    "plural": (
        ("One [k], two what?", "What is the word for more than one [k]?", "There is one [k]. Now there are two. Two what?"),
        ("One [k], two *.", "Two *.", "We say *."),
        (
            ("mouse", "mice"), ("foot", "feet"), ("tooth", "teeth"), ("child", "children"), ("leaf", "leaves"),
            ("goose", "geese"), ("man", "men"), ("woman", "women"), ("fish", "fish"), ("knife", "knives"),
            ("box", "boxes"), ("berry", "berries"), ("cat", "cats"), ("bus", "buses"), ("baby", "babies"),
            ("sheep", "sheep"), ("wolf", "wolves"), ("dish", "dishes"), ("shelf", "shelves"), ("story", "stories"),
        ),
    ),
    "when": (
        ("When do we [k]?", "When do people [k]?"),
        ("We [k] *.", "People do that *."),
        (
            ("eat breakfast", "in the morning"), ("see the stars", "at night"), ("eat lunch", "at noon"),
            ("build a snowman", "in winter"), ("pick ripe pumpkins", "in autumn"), ("open an umbrella", "when it rains"),
            ("eat dinner", "in the evening"), ("swim in the warm lake", "in summer"),
            ("see the first flowers", "in spring"), ("drink", "when we are thirsty"),
            ("rest", "when we are tired"), ("wear a thick coat", "when it is cold"), ("laugh", "when something is funny"),
            ("say thank you", "when we get a gift"), ("say sorry", "when we did something wrong"),
        ),
    ),
    "wear": (
        ("Where do you wear [k]?", "Where does [k] go on your body?", "On what do you put [k]?"),
        ("You wear it on your *.", "On your *.", "It goes on the *."),
        (
            ("a hat", "head"), ("a shoe", "foot"), ("a glove", "hand"), ("a ring", "finger"), ("a scarf", "neck"),
            ("a belt", "waist"), ("a sock", "foot"), ("a watch", "wrist"), ("an earring", "ear"), ("a mitten", "hand"),
            ("a backpack", "back"), ("a necklace", "neck"), ("a crown", "head"), ("a pair of glasses", "nose"),
        ),
    ),
    "shape": (
        ("What shape is [k]?", "Which shape does [k] have?"),
        ("[k] is a *.", "It has the shape of a *.", "It is a *."),
        (
            ("a wheel", "circle"), ("a coin", "circle"), ("a door", "rectangle"), ("one side of a cube", "square"),
            ("a slice of pizza", "triangle"), ("a ring", "circle"), ("a plate", "circle"), ("a page of a book", "rectangle"),
            ("a chess board", "square"), ("a flat starfish", "star"),
        ),
    ),
    "polite": (
        ("What do you say when [k]?", "What is polite to say when [k]?"),
        ('You say "*".', 'I say "*".', '"*" is the right thing to say.'),
        (
            ("somebody gives you a present", "Thank you"), ("you go to bed", "Good night"),
            ("you meet a friend in the morning", "Good morning"), ("you step on a foot", "I am sorry"),
            ("you leave", "Goodbye"), ("it is your friend's birthday", "Happy birthday"),
            ("you would like some milk", "Please"), ("somebody sneezes", "Bless you"),
            ("somebody says thank you", "You are welcome"), ("you meet somebody for the first time", "Nice to meet you"),
        ),
    ),
}  # fmt: skip

# Values that would be true as well, and so must not be offered as wrong ones.
ALSO_TRUE: dict[tuple[str, str], tuple[str, ...]] = {
    ("opposite", "old"): ("late",), ("opposite", "first"): ("back",), ("opposite", "last"): ("front", "start"),
    ("opposite", "good"): ("dirty", "false"), ("opposite", "light"): ("black",), ("opposite", "bad"): ("right", "true"),
    ("opposite", "short"): ("high",), ("opposite", "low"): ("loud", "up"), ("opposite", "high"): ("short", "down"),
    ("opposite", "small"): ("high", "long"), ("opposite", "true"): ("no", "bad"), ("opposite", "hard"): ("weak", "smooth"), ("opposite", "rough"): ("soft", "quiet"), ("opposite", "smooth"): ("hard",),
    ("opposite", "soft"): ("loud", "strong", "rough"), ("opposite", "strong"): ("soft",), ("opposite", "weak"): ("hard",),
    ("opposite", "up"): ("low", "below"), ("opposite", "down"): ("high", "above"), ("opposite", "happy"): ("cry",),
    ("opposite", "above"): ("down", "low"), ("opposite", "below"): ("up", "high"), ("opposite", "sad"): ("laugh",),
    ("opposite", "front"): ("last",), ("opposite", "back"): ("first",), ("opposite", "dark"): ("white",),
    ("opposite", "white"): ("dark",), ("opposite", "black"): ("light",), ("opposite", "cry"): ("happy",),
    ("opposite", "laugh"): ("sad",), ("opposite", "start"): ("last",), ("opposite", "stop"): ("first",),
    ("opposite", "big"): ("short", "young"), ("opposite", "late"): ("first",), ("opposite", "early"): ("last",),
    ("opposite", "afraid"): ("strong",), ("opposite", "brave"): ("weak",),
    ("color", "a frog"): ("brown",), ("color", "the night sky"): ("blue",), ("color", "a pig"): ("black", "brown", "white"),
    ("color", "an elephant"): ("brown",), ("color", "a swan"): ("black",),
    ("color", "a pea"): ("yellow",), ("color", "wet earth"): ("black",), ("color", "a chick"): ("brown", "black"),
    ("color", "chocolate"): ("white", "black"), ("color", "a ripe tomato"): ("yellow", "orange"),
    ("color", "a pumpkin"): ("green", "yellow"), ("color", "the inside of a watermelon"): ("green", "yellow", "pink", "white", "black"),
    ("color", "corn"): ("white",), ("color", "a carrot"): ("yellow", "red", "white"), ("color", "a banana"): ("green",),
    ("color", "salt"): ("pink",),
    ("color", "a blueberry"): ("black",), ("color", "a flamingo"): ("red", "white"), ("color", "a fire truck"): ("yellow",),
    ("sound", "wolf"): ("woof",), ("sound", "chick"): ("tweet",), ("sound", "bird"): ("peep", "caw", "hoot", "quack"),
    ("sound", "cat"): ("hiss",), ("sound", "mouse"): ("peep",), ("sound", "dog"): ("howl",), ("sound", "owl"): ("tweet",),
    ("home", "a fish"): ("in the ocean",), ("home", "a whale"): ("in the water",), ("home", "a bird"): ("in the forest", "in the jungle"),
    ("home", "a spider"): ("in the forest", "in the jungle"), ("home", "a horse"): ("on a farm",),
    ("home", "a bee"): ("in the forest",), ("home", "a penguin"): ("in the ocean", "in the water"),
    ("home", "a pirate"): ("in the ocean",), ("home", "a mole"): ("in the forest",), ("home", "a snail"): ("in the forest",),
    ("use", "a pen"): ("make music",),
    ("use", "a pair of scissors"): ("tidy your hair",), ("use", "a stove"): ("bake bread", "light a room"),
    ("use", "an oven"): ("cook dinner",), ("use", "a phone"): ("tell the time", "take pictures", "find the way", "light a room"),
    ("use", "a boat"): ("catch fish",), ("use", "a spoon"): ("dig a hole", "make music"),
    ("use", "a watering can"): ("wash your hands",),
    ("use", "a saw"): ("make music",), ("use", "a hammer"): ("make music",),
    ("young", "deer"): ("calf",),
    ("young", "duck"): ("chick",), ("young", "goose"): ("chick",), ("young", "swan"): ("chick",), ("young", "dog"): ("cub",),
    ("sense", "hold a pencil"): ("hands",), ("sense", "clap"): ("fingers",), ("sense", "taste"): ("nose",),
    ("sense", "bite"): ("head",), ("sense", "see"): ("head",), ("sense", "hear"): ("head",), ("sense", "smell"): ("head",),
    ("feel", "ice"): ("hard", "wet", "sharp"), ("feel", "water"): ("cold", "hot", "soft"), ("feel", "a pillow"): ("light", "dry"), ("feel", "a stone"): ("cold", "round", "dry", "sharp"),
    ("feel", "a needle"): ("hard", "light"), ("feel", "fire"): ("loud", "fast"),
    ("feel", "a race car"): ("loud", "hard"), ("feel", "a snail"): ("wet", "soft"),
    ("feel", "a lemon"): ("wet", "round"), ("feel", "sugar"): ("dry",),
    ("job", "a farmer"): ("cares for plants", "makes meals"), ("job", "a gardener"): ("grows food",), ("job", "a cook"): ("bakes bread",),
    ("job", "a baker"): ("makes meals",), ("job", "a fisherman"): ("works on a ship", "grows food"),
    ("job", "a sailor"): ("catches fish",), ("job", "a dentist"): ("makes sick people well",),
    ("job", "a teacher"): ("paints pictures", "sings songs", "writes books"),
    ("source", "a chicken"): ("a hen",), ("source", "cheese"): ("a cow",),
    ("when", "drink"): ("in the morning", "at noon", "in the evening", "in summer", "at night", "in winter", "in spring", "in autumn"),
    ("when", "rest"): ("in the morning", "at noon", "in the evening", "at night", "in summer", "in winter", "in spring", "in autumn"),
    ("when", "wear a thick coat"): ("in winter", "when it rains", "in autumn"), ("when", "see the stars"): ("in the evening", "in winter", "in summer", "in spring", "in autumn"),
    ("when", "build a snowman"): ("when it is cold", "in the morning", "at noon"), ("when", "eat dinner"): ("at night", "in winter", "in summer", "in spring", "in autumn"),
    ("when", "eat breakfast"): ("in winter", "in summer", "in spring", "in autumn"), ("when", "eat lunch"): ("in winter", "in summer", "in spring", "in autumn"),
    ("when", "swim in the warm lake"): ("in the morning", "at noon", "in the evening"),
    ("when", "see the first flowers"): ("in the morning", "at noon"), ("when", "pick ripe pumpkins"): ("in the morning", "at noon"),
    ("when", "open an umbrella"): ("in autumn", "in spring", "in winter", "in summer"),
    ("when", "laugh"): ("in the morning", "at noon", "in the evening", "at night", "in summer", "in winter", "in spring", "in autumn"),
    ("when", "say thank you"): ("in the morning", "at noon", "in the evening", "at night"),
    ("when", "say sorry"): ("in the morning", "at noon", "in the evening", "at night"),
    ("wear", "a ring"): ("hand", "ear", "nose"), ("wear", "an earring"): ("nose",), ("wear", "a watch"): ("hand",),
    ("wear", "a glove"): ("finger",), ("wear", "a mitten"): ("finger",), ("wear", "a scarf"): ("head",), ("wear", "a pair of glasses"): ("head", "ear"),
    ("shape", "a chess board"): ("rectangle",), ("shape", "one side of a cube"): ("rectangle",),
    ("polite", "you go to bed"): ("Goodbye",), ("polite", "you leave"): ("Good night",),
    ("polite", "you meet somebody for the first time"): ("Good morning",),
    ("polite", "somebody says thank you"): ("Thank you",),
}  # fmt: skip
ALSO_TRUE |= {("kind", key): ("an animal",) for key, right in FACTS["kind"][2] if right in ("a bird", "an insect")}
