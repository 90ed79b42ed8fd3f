"""Hold the words, phrases and plots of ``world`` and the tables of ``facts`` as data.

``PLOTS`` is the text of ``plots.txt``. A plot is a block of it: a head line (name # hero # weather # subject), then ``LET``
lines (values that are drawn once), then ``Q`` lines (question ; variant # answer with * for the value # right value # pool
of wrong values), then its beats. A beat is a paragraph of wordings, one of which is used. Flags before a beat mean: ``?``
may be left out, ``p`` begins a paragraph, ``=a`` belongs to outcome a. A pool is a name known to ``world`` or a list of
values.
"""

# ruff: noqa: E501 (each wording is on one line)
from __future__ import annotations

from pathlib import Path

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
PLOTS = (Path(__file__).parent / "plots.txt").read_text("utf-8")

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
