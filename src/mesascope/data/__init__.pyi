from .files import cache_folder as cache_folder, data_folders as data_folders
from .image_sets import PARTS as PARTS, Images as Images, images as images, images_of as images_of
