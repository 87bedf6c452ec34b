"""The pools that every generated mailbox draws from.

The vocabulary is closed: a seed chooses and combines words, it never makes one. So a small model with one
token a word can read every world. The pools do not overlap: a word is a project, or a surname, or a thing,
never two of them.
"""

from __future__ import annotations

FIRST_NAMES = tuple(
    """Adam Agnes Albert Alice Alma Amir Anders Andrea Anita Anton Arthur Astrid Beata Bella Ben Bianca Boris
    Bruno Camille Carla Carlos Cecilia Clara Claire Conrad Dana Daniel David Diana Dora Edgar Edith
    Elena Eli Elsa Emil Emma Eric Ernst Esther Eva Fabian Farah Felix Fiona Flora Frank Frida Gabriel
    Georg Gloria Greta Gustav Hana Hannah Harald Hassan Heidi Helen Henry Hugo Ida Igor Ilse Ines Ingrid
    Irene Isaac Ivan Jakob Jana Jasmin Joel Johan Jonas Judith Julia Karin Karl Katya Klara Lars Laura
    Lea Leon Leila Lena Linda Lotte Louis Lucas Luisa Magnus Malik Marco Maria Martha Matteo Maya Mila
    Miriam Nadia Nils Nina Nora Olga Oscar Otto Paula Pavel Peter Petra Ralf Rosa Samir Sara Simon Sofia
    Tanja Theo Tomas Ursula Vera Viktor Yara Yusuf Zoe""".split()
)

SURNAMES = tuple(
    """Abel Adler Ahlberg Albrecht Almeida Amsel Arendt Bachmann Baptiste Barros Baumann Becker Bellini Berger
    Bianchi Bjork Blum Bonnet Borg Brandt Brenner Broch Calder Castro Cerny Conti Costa Dahl Dekker
    Delgado Dietrich Doyle Draper Dreyer Dubois Durand Eberle Ekman Engel Evans Farkas Fiedler Fischer
    Fontaine Forsberg Franke Friis Gallo Garcia Gerber Giordano Grahn Greco Gruber Haas Hagen Haller
    Hansen Hartmann Hayek Heller Henning Hidalgo Hoffmann Holt Horvath Huber Ibsen Iversen Jansen Jensen
    Johansson Kaiser Kaplan Keller Kessler Kiss Klein Knudsen Kovacs Kowalski Krause Kuhn Lambert Lang
    Larsen Laurent Lehmann Leroy Lindqvist Lombardi Lopez Lorenz Ludwig Lund Maier Mancini Marek Marino
    Mendes Meyer Moreau Moretti Moser Mueller Nagy Navarro Neumann Nielsen Nilsson Novak Nowak Oberg
    Okafor Olsen Ortega Otsen Pereira Petersen Pfeiffer Pohl Popescu Quist Ramos Raske Reuter Ricci
    Richter Rossi Roth Rousseau Rubin Ruiz Sato Sauer Schmidt Schreiber Schulz Seidel Silva Simic
    Sorensen Steiner Sundberg Svensson Tanaka Thalberg Thorsen Toth Ulrich Vargas Vogel Wagner Walther
    Weber Weiss Werner Winkler Wolff Yilmaz Zeller Ziegler Zimmer""".split()
)

PROJECTS = tuple(
    """Acorn Albatross Alder Amber Anchor Antelope Apollo Arrow Aspen Aurora Badger Bamboo Basalt Beacon Birch
    Bison Bluebird Boulder Bronze Buffalo Cactus Canyon Caravan Cardinal Cascade Cedar Cobalt Comet
    Compass Condor Copper Coral Corona Coyote Crane Crater Crystal Cypress Delta Diamond Dolphin Dragon
    Dune Eagle Echo Eclipse Elk Ember Emerald Falcon Fern Flint Fox Galaxy Garnet Gazelle Geyser Glacier
    Granite Griffin Harbor Harrier Hawk Hazel Heron Hornet Ibis Iceberg Indigo Iris Ivory Jade Jaguar
    Jasmine Juniper Jupiter Kestrel Kingfisher Kite Lagoon Lantern Larch Laurel Lava Leopard Lily Lotus
    Lynx Magnet Magnolia Mallard Maple Marble Marlin Meteor Mistral Monsoon Moose Nebula Neptune Oak
    Oasis Obsidian Ocean Olive Onyx Opal Orchid Orion Osprey Otter Panther Pebble Pelican Peregrine
    Phoenix Pilot Pine Plover Polaris Poplar Prism Puffin Quartz Quasar Raven Redwood Robin Ruby Saffron
    Sahara Sapphire Saturn Scarab Sequoia Shark Sierra Sparrow Spruce Stork Swallow Swan Sycamore Tango
    Thistle Thunder Tiger Topaz Tornado Tulip Tundra Umbra Vega Velvet Violet Viper Vulcan Walnut Walrus
    Willow Wombat Yarrow Zenith Zephyr""".split()
)

CUSTOMERS = tuple(
    """
    Actora Adelphi Alnova Altmark Ambrosia Antaris Arcadis Argenta Arvion Astera Avalon Baltex Bergia Boreal
    Bravura Brightco Calyx Camino Candela Carbona Cendris Cirrus Civitas Clarion Corvex Cosmora Credia
    Cresta Daltec Dexter Domus Dorado Elbia Elektra Elvaris Enigma Ensora Estrela Evoria Fabrica Faros
    Fenwick Finora Florens Fortis Fracta Galvano Gemina Gloriam Halcyon Helvex Heliora Hexagon Humana
    Imago Inova Interra Isara Juventa Kalmar Kernel Korona Kronos Lavanda Levanto Lexica Lumina Luxor
    Macrona Maritim Medora Meridia Mirex Modena Montara Navitas Nexora Nimbus Nordex Novalis Octavia
    Olympia Optima Orbita Ostara Palladia Parsec Pharos Primora Proxima Quantis Quorum Radiant Regalia
    Rotor Sanova Savona Selenia Serena Silvana Solaris Sonora Spectra Stellar Sudwest Syntax Tacita
    Tectona Terranova Titania Trident Unitas Valora Vectra Veritas Vialto Vitalis Westbrook Xanten
    Zamora""".split()
)

PLACES = tuple(
    """Aarhus Amsterdam Antwerp Athens Barcelona Basel Berlin Bilbao Bologna Bremen Brussels Budapest Cologne
    Copenhagen Dresden Dublin Florence Geneva Genoa Ghent Gothenburg Graz Hamburg Helsinki Innsbruck
    Krakow Leipzig Lisbon Ljubljana London Lyon Madrid Malmo Marseille Milan Munich Naples Oslo Palermo
    Paris Porto Prague Riga Rome Rotterdam Salzburg Seville Stockholm Stuttgart Tallinn Trieste Turin
    Utrecht Valencia Venice Vienna Vilnius Warsaw Zurich""".split()
)

#: Things that a mail can be about. A world uses some of them; no phrase contains any.
DETAILS = tuple(
    """adapter aerials alarm anvil aprons awning axles backpacks badges baffles ballast bannisters barrels
    basins batteries bearings bellows belts benches binders blankets blinds boilers bolts bookcase boots
    brackets bricks brooms brushes buckets bulbs bunting buoys burners bushings cabinets cables cameras
    candles canisters canopy carpets cartons cartridges casters ceiling cement chains chairs chargers
    chimney chisels clamps clocks coils compressor cones containers conveyor corks couplings crates
    curtains cushions cutters cylinders dampers decals dehumidifier dispensers ditch dome doorbell
    dowels drapes drawers drills drums ducts easels elevator engine envelopes escalator extractor fans
    faucets fence filters fittings flagpole flanges flashlights flasks floats footrests forklift
    fountain freezers funnels furnace fuses gaskets gauges gearbox generator glasses gloves goggles
    grates grinder gutters hammers hammocks handles harnesses hatches headsets heaters helmets hinges
    hoists hooks hoppers hoses hydrants insulation intercom jackets jars jigs joists kayaks kegs kettles
    keyboards kiosks ladders lamps lanyards lasers latches lathe leaflets lenses levers lockers
    magnifier mailbags mannequins masts mattresses microphones microscope mirrors mixers mortar motors
    mowers mufflers nails napkins nozzles oars oven padlocks paint pallets pamphlets panels parasols
    pedals pendulum pipes pistons planks plaques plates pliers plugs podium posters printers projector
    propeller pulleys pumps racks radiators rafters railings ramps ratchets razors reels relays resin
    rivets rollers ropes routers rudders rugs saddles sandbags saws scaffold scales scanner scissors
    screws sealant sensors shelves shovels showers shutters signs sinks sirens skylight sledges sleeves
    sockets sofas solvents spades speakers spindles sponges springs sprinklers stairs staplers statues
    stools stoves straps switches syringes tables tanks tarpaulin telescope tents thermostat tiles tires
    toolboxes torches towels trailers transformer trays tripods trolleys troughs trowels tubes turbine
    turnstile umbrellas uniforms vacuums valves vases velcro ventilator vests vinyl visors washers
    wheelbarrow wheels whistles whiteboards winches windscreen wires wrenches zippers""".split()
)

#: Matters of private and office life: asides in mails, and the noise people put into questions.
CONTEXTS = tuple(
    """allotment anniversary aquarium bakery ballet barbecue basketball birthday bonfire bookshop carnival
    castle ceremony chess choir christening cinema circus concert crossword dancing dentist doctor
    exhibition fair ferry festival flight fundraiser funeral gallery garden graduation gym hairdresser
    hike hockey holiday hospital kindergarten library lottery lunch marathon match museum nursery opera
    orchestra parade picnic plumber pottery quiz rally reunion sailing sauna school seminar skiing
    supermarket swimming tennis theatre vet volleyball wedding workshop yoga zoo""".split()
)

COMPANIES = (
    "Northgate",
    "Brightwater",
    "Eastmoor",
    "Fairhaven",
    "Kingsbridge",
    "Longfield",
    "Millbrook",
    "Oakridge",
)

MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)
WEEKDAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())

DEPARTMENTS = {
    "Finance": ("controller", "accountant", "treasurer"),
    "Sales": ("account manager", "sales lead", "sales assistant"),
    "Engineering": ("engineer", "technical lead", "architect", "tester"),
    "Operations": ("planner", "site manager", "logistics lead"),
    "Purchasing": ("buyer", "supplier manager"),
    "Legal": ("counsel", "paralegal"),
    "People": ("recruiter", "people partner"),
    "Support": ("support agent", "duty manager"),
    "Facilities": ("caretaker", "office manager"),
}
